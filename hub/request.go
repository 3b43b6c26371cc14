// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

const (
	maxRedirects = 10
	maxTries     = 5               // in a row that bring nothing
	firstWait    = time.Second     // doubled from try to try
	longestWait  = 6 * time.Minute // the Hub counts requests in windows of five minutes
)

// errSilent is the reason of a server that says nothing.
var errSilent = errors.New("it is silent")

// answer is what a server answers with status 200 or 206.
type answer struct {
	*http.Response
	hub http.Header // the endpoint's own answer, which names the file's hash where it redirects
}

// message is what a request has beside its address. The zero value is a GET.
type message struct {
	method   string // "" is GET
	header   http.Header
	body     func() io.Reader // gives the body for one try; nil: there is none
	size     int64            // of the body, in bytes
	patience time.Duration    // how long the server may be silent; 0: the client's timeout
}

// ask sends a GET request and follows redirects. The token goes to the endpoint alone. The caller closes the body.
func (c *Client) ask(ctx context.Context, q question, address string, header http.Header) (*answer, error) {
	return c.exchange(ctx, q, address, message{header: header})
}

// exchange sends a request and follows redirects; what has a body stays at its server.
func (c *Client) exchange(ctx context.Context, q question, address string, m message) (*answer, error) {
	transport, err := c.ready()
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	a := &answer{}
	for range maxRedirects {
		a.Response, err = c.send(ctx, transport, at, m)
		if err != nil {
			return nil, c.unreachable(q, at, err)
		}
		if c.own(at) {
			a.hub = a.Header
		}
		next, err := redirect(q, a.Response)
		if next == nil {
			return c.checked(q, a, err)
		}
		_ = a.Body.Close()
		if m.body != nil && (next.Host != at.Host || a.StatusCode != http.StatusTemporaryRedirect &&
			a.StatusCode != http.StatusPermanentRedirect) {
			return nil, faultf(ErrServer, "%s redirects an upload for %s to %s (%s): want 307 or 308 to the same host",
				at.Host, q.repo, next.Host, status(a.Response))
		}
		at = next
		if m.header != nil {
			m.header.Del("If-Range") // it is of what the other address had
		}
	}
	return nil, faultf(ErrServer, "%s redirects more than %d times for %s", at.Host, maxRedirects, q.repo)
}

// checked is the answer if it is one that the caller can read.
func (c *Client) checked(q question, a *answer, err error) (*answer, error) {
	switch {
	case err == nil && (a.StatusCode == http.StatusOK || a.StatusCode == http.StatusPartialContent ||
		q.upload && a.StatusCode/100 == 2):
		return a, nil
	case err == nil && a.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		err = errRange
	case err == nil:
		err = c.refusal(q, a.Response)
	}
	_ = a.Body.Close()
	return nil, err
}

// redirect is where an answer sends; nil if nowhere.
func redirect(q question, r *http.Response) (*url.URL, error) {
	switch r.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	from := r.Request.URL
	next, err := from.Parse(r.Header.Get("Location"))
	switch {
	case err != nil || next.Host == "" || next.Scheme != "http" && next.Scheme != "https":
		return nil, faultf(ErrServer, "%s redirects for %s to no address", from.Host, q.repo)
	case from.Scheme == "https" && next.Scheme == "http":
		return nil, faultf(ErrServer, "%s redirects for %s to %s without TLS: want https", from.Host, q.repo, next.Host)
	}
	return next, nil
}

// send makes one request.
func (c *Client) send(ctx context.Context, t http.RoundTripper, at *url.URL, m message) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{limit: cmp.Or(m.patience, c.timeout()), end: func() { cancel(nil) }, ctx: ctx}
	w.timer = time.AfterFunc(w.limit, func() { cancel(errSilent) })
	r, err := http.NewRequestWithContext(ctx, m.method, at.String(), nil)
	if err != nil {
		w.stop()
		return nil, err
	}
	if m.header != nil {
		r.Header = m.header.Clone()
	}
	if m.body != nil {
		r.Body, r.ContentLength = io.NopCloser(&sent{m.body(), w}), m.size
	}
	r.Header.Set("User-Agent", c.agent())
	r.Header.Set("Accept-Encoding", "identity") // sizes and ranges are those of the file
	if c.own(at) && c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		err = w.why(err)
		w.stop()
		return nil, err
	}
	w.body, resp.Body = resp.Body, w
	return resp, nil
}

// sent is the body of a request. A server that takes some of it is not silent.
type sent struct {
	io.Reader
	watch *watch
}

func (s *sent) Read(b []byte) (int, error) {
	s.watch.timer.Reset(s.watch.limit)
	return s.Reader.Read(b)
}

func (c *Client) agent() string {
	if c.UserAgent != "" {
		return c.UserAgent
	}
	return "lockstep"
}

// userAgent names the version of this module, unless the user does not want it to be counted.
func userAgent() string {
	agent := "lockstep"
	if info, ok := debug.ReadBuildInfo(); ok && !isTrue("HF_HUB_DISABLE_TELEMETRY") && !isTrue("DISABLE_TELEMETRY") &&
		!isTrue("DO_NOT_TRACK") {
		for _, m := range append(info.Deps, &info.Main) {
			if strings.HasSuffix(m.Path, "/lockstep") && m.Version != "" {
				agent += "/" + m.Version
			}
		}
	}
	if origin := printable(os.Getenv("HF_HUB_USER_AGENT_ORIGIN")); origin != "" {
		agent += "; origin/" + origin
	}
	return agent
}

// own reports whether an address is of the endpoint: the same scheme, host and port.
func (c *Client) own(at *url.URL) bool {
	base, err := url.Parse(c.Endpoint)
	return err == nil && at.Scheme == base.Scheme && strings.EqualFold(at.Hostname(), base.Hostname()) &&
		portOf(at) == portOf(base)
}

func portOf(at *url.URL) string {
	if p := at.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[at.Scheme]
}

// watch is a body that ends with an error if the server says nothing for some time.
type watch struct {
	body  io.ReadCloser
	ctx   context.Context
	timer *time.Timer
	limit time.Duration
	end   func()
}

func (w *watch) Read(b []byte) (int, error) {
	w.timer.Reset(w.limit)
	n, err := w.body.Read(b)
	if err != nil && err != io.EOF {
		err = w.why(err)
	}
	return n, err
}

// why is errSilent if that is why something failed.
func (w *watch) why(err error) error {
	if context.Cause(w.ctx) == errSilent {
		return fmt.Errorf("%w for %s", errSilent, w.limit)
	}
	return err
}

func (w *watch) stop() {
	w.timer.Stop()
	w.end()
}

func (w *watch) Close() error {
	err := w.body.Close()
	w.stop()
	return err
}

// retry repeats what fails for the time being, until several tries in a row bring nothing.
func (c *Client) retry(ctx context.Context, q question, try func() (progress bool, err error)) error {
	for failed := 0; ; {
		progress, err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		t, ok := errors.AsType[*temporary](err)
		if !ok {
			return err
		}
		if q.once && (errors.Is(err, ErrUnreachable) || errors.Is(err, ErrServer)) {
			return t.error
		}
		if progress {
			failed = 0
		}
		failed++
		most := maxTries
		for _, n := range []int{t.tries, q.tries} {
			if n > 0 {
				most = min(most, n)
			}
		}
		pause := max(t.after, firstWait<<(failed-1)+time.Duration(rand.Int64N(int64(firstWait)/4)))
		if failed >= most || pause > longestWait {
			return t.error
		}
		c.log().Warn("The "+q.verb()+" is tried again.", "in", pause.Round(time.Second/10), "because", t.error)
		if err := c.sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// sleep waits, or ends with the context.
func (c *Client) sleep(ctx context.Context, d time.Duration) error {
	if c.wait != nil {
		return c.wait(ctx, d)
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// rateLimit is the header of the Hub that says how many requests are left, and in how many seconds there are new ones.
var rateLimit = regexp.MustCompile(`r=0;\s*t=(\d{1,6})`)

// retryAfter is when a server expects the next request again; 0: it does not say.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.Atoi(text); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, 1<<30)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	if m := rateLimit.FindStringSubmatch(h.Get("RateLimit")); m != nil {
		seconds, _ := strconv.Atoi(m[1]) // digits
		return time.Duration(seconds+1) * time.Second
	}
	return 0
}
