// Package dist lets the ranks of a training job work together: reductions, gathers, broadcasts, messages and barriers between goroutines
// of one process or processes of one or many hosts.
//
// A [Group] is one rank's view of a set of ranks. It keeps what must be the same whatever moves the bytes: calls run in the order in which they were
// issued, each carries a [Signature] that all ranks compare, each has a deadline, and the first error kills the group on every rank, so
// that a mistake on one rank is an error with a name on all of them and never a silent hang. An [Engine] moves and adds the bytes: dist/local
// (goroutines), dist/shm (processes of one host), dist/tcp (hosts), dist/fake (counts only).
//
// # The order of additions
//
// Floating-point addition is not associative, so the result of a reduction depends on its order. The specified order, which all engines follow unless
// [Options.FastOrder] is set, is a binary tree over ranks, per element: partners at distance 1, 2, 4, … are combined, rank i with rank i+d, and one without a
// partner is carried up. float32 and float64 are added in their own precision, bfloat16 and float16 in float32 with one rounding at the end; integers wrap around.
// How a buffer is cut into slices or chunks never matters. The result is the same on all ranks, bit for bit.
//
// It is NOT a launcher (see accelerate), knows no tensors, no gradients and no buckets, and neither encrypts nor compresses.
package dist
