// SPDX-License-Identifier: Apache-2.0

// Windows that move over images, max pooling, and what convolutions need beside products.

#include "rows.cuh"

// Window moves over planes of h × w pixels of depth elements: kh × kw pixels at each of oh × ow places. Everything but
// planes fits 32 bits, and so does a plane's part of either operand.
struct Window {
  i64 planes;
  i32 depth, h, w, kh, kw, oh, ow, sh, sw, ph, pw, dh, dw;
};

// im2col sets what each pixel of the window sees. A block has a part of the places of pixel (a,b) of a plane, number
// blockIdx.x of planes·kh·kw.
template <typename T> DEVICE void im2col(const T *x, T *y, const Window &g) {
  i64 unit = blockIdx.x;
  int taps = g.kh * g.kw, width = g.ow * g.depth, n = g.oh * width;
  int tap = (int)(unit % taps), top = tap / g.kw * g.dh - g.ph, left = tap % g.kw * g.dw - g.pw;
  x += unit / taps * ((i64)g.h * g.w * g.depth);
  y += unit * n;
  for (int e = blockIdx.y * blockDim.x + threadIdx.x; e < n; e += gridDim.y * blockDim.x) {
    int i = e / width, rest = e - i * width, j = rest / g.depth, d = rest - j * g.depth;
    int row = i * g.sh + top, col = j * g.sw + left;
    bool seen = row >= 0 && row < g.h && col >= 0 && col < g.w;
    y[e] = seen ? x[(row * g.w + col) * g.depth + d] : T{};
  }
}

// col2im sets each element of an image to the sum, in the order of (a,b), of what went from it to windows. A block has
// a part of plane blockIdx.x.
template <typename S, typename T> DEVICE void col2im(const S *cols, T *x, const Window &g) {
  i64 plane = blockIdx.x;
  int width = g.w * g.depth, n = g.h * width, places = g.oh * g.ow * g.depth;
  cols += plane * ((i64)g.kh * g.kw * places);
  x += plane * n;
  for (int e = blockIdx.y * blockDim.x + threadIdx.x; e < n; e += gridDim.y * blockDim.x) {
    int row = e / width, rest = e - row * width, col = rest / g.depth, d = rest - col * g.depth;
    f64 sum = 0;
    for (int a = 0; a < g.kh; a++) {
      int down = row + g.ph - a * g.dh, i = down / g.sh;
      if (down < 0 || i * g.sh != down || i >= g.oh) continue;
      for (int b = 0; b < g.kw; b++) {
        int across = col + g.pw - b * g.dw, j = across / g.sw;
        if (across < 0 || j * g.sw != across || j >= g.ow) continue;
        sum += (f64)widen(cols[(i64)(a * g.kw + b) * places + (i * g.ow + j) * g.depth + d]);
      }
    }
    x[e] = narrow<T>((Wide<T>)sum);
  }
}

// max_pool sets the maximum of each window and its place in the plane: the first one's, and NaN wins. Here planes are
// those of pixels without depth, the window is not dilated, and it sees at least one pixel.
template <typename T> DEVICE void max_pool(const T *x, T *y, i64 *index, const Window &g) {
  i64 n = g.planes * g.oh * g.ow;
  for (i64 e = thread_index(); e < n; e += thread_count()) {
    i64 plane = e / (g.oh * g.ow);
    int place = (int)(e - plane * (g.oh * g.ow)), i = place / g.ow, j = place - i * g.ow;
    const T *p = x + plane * ((i64)g.h * g.w);
    int top = i * g.sh - g.ph, left = j * g.sw - g.pw;
    int bottom = min(top + g.kh, g.h), right = min(left + g.kw, g.w);
    top = max(top, 0);
    left = max(left, 0);
    int best = top * g.w + left;
    Wide<T> most = widen(p[best]);
    for (int row = top; row < bottom; row++) {
      for (int col = left; col < right; col++) {
        Wide<T> v = widen(p[row * g.w + col]);
        if (v > most || (v != v && most == most)) {
          most = v;
          best = row * g.w + col;
        }
      }
    }
    y[e] = p[best];
    index[e] = best;
  }
}

// max_pool_grad sets each element to the sum, in their order, of dy of the windows that have their maximum there. A
// block has a part of plane blockIdx.x.
template <typename T> DEVICE void max_pool_grad(const T *dy, const i64 *index, T *dx, const Window &g) {
  i64 plane = blockIdx.x;
  int n = g.h * g.w, places = g.oh * g.ow;
  dy += plane * places;
  index += plane * places;
  dx += plane * n;
  for (int e = blockIdx.y * blockDim.x + threadIdx.x; e < n; e += gridDim.y * blockDim.x) {
    int row = e / g.w, down = row + g.ph, across = e - row * g.w + g.pw;
    int top = down < g.kh ? 0 : (down - g.kh) / g.sh + 1, left = across < g.kw ? 0 : (across - g.kw) / g.sw + 1;
    int bottom = min(down / g.sh, g.oh - 1), right = min(across / g.sw, g.ow - 1);
    Wide<T> sum = 0;
    for (int i = top; i <= bottom; i++)
      for (int j = left; j <= right; j++)
        if (index[i * g.ow + j] == e) sum += widen(dy[i * g.ow + j]);
    dx[e] = narrow<T>(sum);
  }
}

// conv_bias sets y [N,O,L] to the bias of its channel, to which products are added.
template <typename T> DEVICE void conv_bias(const T *bias, T *y, i64 planes, i32 channels, i32 length) {
  T b = bias[blockIdx.x % channels];
  y += (i64)blockIdx.x * length;
  for (int e = blockIdx.y * blockDim.x + threadIdx.x; e < length; e += gridDim.y * blockDim.x) y[e] = b;
}

// conv_sum adds the gradients of the kernels of so many samples, one after the other, to sums, which are begun where
// begin is set; out, if not null, gets them.
template <typename T>
DEVICE void conv_sum(const Wide<T> *parts, f64 *sums, T *out, i64 n, int samples, int begin) {
  for (i64 e = thread_index(); e < n; e += thread_count()) {
    f64 sum = begin ? 0 : sums[e];
#pragma unroll 4
    for (int i = 0; i < samples; i++) sum += (f64)parts[i * n + e];
    if (out)
      out[e] = narrow<T>((Wide<T>)sum);
    else
      sums[e] = sum;
  }
}

#define FLOATS(S, T)                                                                                                  \
  KERNEL im2col_##S(const T *x, T *y, Window g) { im2col(x, y, g); }                                                  \
  KERNEL col2im_##S(const T *cols, T *x, Window g) { col2im(cols, x, g); }                                            \
  KERNEL max_pool_##S(const T *x, T *y, i64 *index, Window g) { max_pool(x, y, index, g); }                           \
  KERNEL max_pool_grad_##S(const T *dy, const i64 *index, T *dx, Window g) { max_pool_grad(dy, index, dx, g); }       \
  KERNEL conv_bias_##S(const T *bias, T *y, i64 planes, i32 channels, i32 length) {                                   \
    conv_bias(bias, y, planes, channels, length);                                                                     \
  }                                                                                                                   \
  KERNEL conv_sum_##S(const Wide<T> *parts, f64 *sums, T *out, i64 n, int samples, int begin) {                       \
    conv_sum<T>(parts, sums, out, n, samples, begin);                                                                 \
  }

FLOATS(f32, f32)
FLOATS(f64, f64)
FLOATS(bf16, bf16)
FLOATS(f16, f16)

KERNEL col2im_wide_bf16(const f32 *cols, bf16 *x, Window g) { col2im(cols, x, g); }
KERNEL col2im_wide_f16(const f32 *cols, f16 *x, Window g) { col2im(cols, x, g); }
