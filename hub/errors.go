// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
)

// Reasons for which nothing is downloaded or uploaded. Errors of this package match them by errors.Is.
var (
	ErrRepository   = errors.New("no such repository")
	ErrRevision     = errors.New("no such revision")
	ErrFile         = errors.New("no such file")
	ErrUnauthorized = errors.New("not authorized")
	ErrGated        = errors.New("gated")
	ErrRateLimit    = errors.New("too many requests")
	ErrServer       = errors.New("the server fails")
	ErrUnreachable  = errors.New("the server cannot be reached")
	ErrOffline      = errors.New("offline")
	ErrHash         = errors.New("wrong hash")
	ErrSize         = errors.New("wrong size")
	ErrConflict     = errors.New("another commit comes before")
	ErrRefused      = errors.New("refused")
)

// fault is an error in plain words with the reason that it matches.
type fault struct {
	reason error
	text   string
	cause  error // nil: none
}

func (f *fault) Error() string { return "hub: " + f.text }

func (f *fault) Unwrap() []error {
	if f.cause == nil {
		return []error{f.reason}
	}
	return []error{f.reason, f.cause}
}

func faultf(reason error, format string, values ...any) *fault {
	return &fault{reason: reason, text: fmt.Sprintf(format, values...)}
}

// temporary is an error after which another try may succeed.
type temporary struct {
	error
	after time.Duration // that the server asks for; 0: it does not say
	tries int           // 0: as many as usual
}

func (t *temporary) Unwrap() error { return t.error }

// question is a request, in the words of errors.
type question struct {
	repo     Repo
	revision string
	file     string // "" of one about the repository
	tries    int    // at most; 0: as many as usual
	upload   bool
	creates  bool // 409: what it creates is there
	once     bool // what failed may have been done: it is not repeated
}

// existing is the error of a server that has what it is asked to create.
type existing struct {
	error
	url string // that it gives it
}

func (q question) verb() string {
	if q.upload {
		return "upload"
	}
	return "download"
}

// refusal says in plain words why a server did not answer a question as asked.
func (c *Client) refusal(q question, r *http.Response) error {
	at := r.Request.URL
	if !c.own(at) {
		return c.elsewhere(q, r)
	}
	code, said := r.Header.Get("X-Error-Code"), printable(r.Header.Get("X-Error-Message"))
	if q.upload {
		if err := c.refusedUpload(q, r, said); err != nil {
			return err
		}
	}
	invalid := strings.Contains(said, "Invalid credentials")
	switch {
	case code == "GatedRepo":
		return faultf(ErrGated, "%s is gated: its owners decide who may download it. Ask for access at %s, %s", q.repo,
			q.repo.page(c.Endpoint), c.afterAccess())
	case code == "RevisionNotFound":
		return faultf(ErrRevision, "%s has no revision %s: want a branch, a tag or a commit of %s", q.repo, q.revision,
			q.repo.page(c.Endpoint))
	case code == "EntryNotFound":
		return faultf(ErrFile, "%s has no file %s at revision %s", q.repo, q.file, q.revision)
	case r.StatusCode == http.StatusUnauthorized && invalid:
		return faultf(ErrUnauthorized, "%s does not know the token that it was sent: want one of %s/settings/tokens "+
			"in "+
			"HF_TOKEN or by \"hf auth login\", or none", at.Host, c.Endpoint)
	case code == "RepoNotFound", r.StatusCode == http.StatusUnauthorized, r.StatusCode == http.StatusNotFound:
		return faultf(notThere(r.StatusCode, code), "there is no %s at %s, or it is private%s", q.repo, c.Endpoint,
			c.ifPrivate())
	case r.StatusCode == http.StatusForbidden:
		return faultf(ErrUnauthorized, "%s does not permit reading %s%s%s", at.Host, q.repo, colon(said), c.ifPrivate())
	case r.StatusCode == http.StatusTooManyRequests:
		after := retryAfter(r.Header, time.Now())
		return &temporary{error: faultf(ErrRateLimit, "%s answers no more requests for now (429 Too Many "+
			"Requests)%s: want "+
			"to try again%s%s", at.Host, colon(said), laterText(after), c.orLogIn()), after: after}
	case r.StatusCode >= 500 || r.StatusCode == http.StatusRequestTimeout:
		return &temporary{error: faultf(ErrServer, "%s fails to answer about %s (%s)%s", at.Host, q.repo, status(r),
			colon(said)), after: retryAfter(r.Header, time.Now())}
	}
	return faultf(ErrServer, "%s answers about %s with %s%s: want 200 OK; HF_ENDPOINT must be a server with the "+
		"Hub's API",
		at.Host, q.repo, status(r), colon(said))
}

// refusedUpload says why a server took no upload; nil: for a reason that downloads have, too.
func (c *Client) refusedUpload(q question, r *http.Response, said string) error {
	var body struct {
		Error, URL string
	}
	if text, err := io.ReadAll(io.LimitReader(r.Body, maxToken)); err == nil {
		_ = json.Unmarshal(text, &body) // the status says enough
	}
	at, said := r.Request.URL.Host, cmp.Or(said, printable(body.Error))
	switch r.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return faultf(ErrUnauthorized, "%s does not permit uploads to %s%s: want a token that may write to it, of "+
			"%s/settings/tokens, in HF_TOKEN or by \"hf auth login\"", at, q.repo, colon(said), c.Endpoint)
	case http.StatusConflict, http.StatusPreconditionFailed:
		if q.creates && !strings.Contains(said, "in progress") {
			return &existing{faultf(ErrConflict, "%s has %s already%s", at, q.repo, colon(said)), body.URL}
		}
		return &temporary{error: faultf(ErrConflict, "%s takes no commit to %s, since another one comes before it%s: "+
			"want to try again", at, q.repo, colon(said)), after: retryAfter(r.Header, time.Now())}
	case http.StatusNotFound:
		if q.file != "" {
			return faultf(ErrServer, "%s has not got %s of %s, which was sent (%s)%s: want to upload again", at, q.file,
				q.repo, status(r), colon(said))
		}
	case http.StatusBadRequest, http.StatusPaymentRequired, http.StatusRequestEntityTooLarge,
		http.StatusUnprocessableEntity:
		return faultf(ErrRefused, "%s refuses the upload to %s (%s)%s", at, q.repo, status(r), colon(said))
	}
	return nil
}

// notThere is the reason of a repository that is missing or hidden.
func notThere(status int, code string) error {
	if status == http.StatusUnauthorized && code != "RepoNotFound" {
		return errors.Join(ErrUnauthorized, ErrRepository)
	}
	return ErrRepository
}

// elsewhere is the refusal of a server that the Hub has redirected to. Its links expire, so that another may work.
func (c *Client) elsewhere(q question, r *http.Response) error {
	if q.upload && r.StatusCode == http.StatusForbidden {
		return faultf(errExpired, "%s does not take %s of %s at the address that %s gave (%s)", r.Request.URL.Host,
			q.file, q.repo, host(c.Endpoint), status(r))
	}
	after := retryAfter(r.Header, time.Now())
	text := fmt.Sprintf("%s, where %s sends for %s of %s, answers with %s", r.Request.URL.Host, host(c.Endpoint),
		q.file, q.repo, status(r))
	if after > 0 {
		text += ": want to try again" + laterText(after)
	}
	if q.upload && r.StatusCode == http.StatusBadRequest { // of other contents than were announced
		return faultf(ErrRefused, "%s", text)
	}
	return &temporary{error: faultf(ErrServer, "%s", text), after: after}
}

func (c *Client) afterAccess() string {
	if c.Token == "" {
		return fmt.Sprintf("then log in by \"hf auth login\", or set HF_TOKEN to a token of %s/settings/tokens",
			c.Endpoint)
	}
	return fmt.Sprintf("with the account of the token in use; a fine-grained token needs the permission to read gated "+
		"repositories too (%s/settings/tokens)", c.Endpoint)
}

func (c *Client) ifPrivate() string {
	if c.Token == "" {
		return fmt.Sprintf(": want its name as on the page, and for a private one \"hf auth login\", or HF_TOKEN "+
			"with a "+
			"token of %s/settings/tokens", c.Endpoint)
	}
	return ": want its name as on the page, and a token whose account may read it"
}

func (c *Client) orLogIn() string {
	if c.Token == "" {
		return ", or with a token (HF_TOKEN), which may ask more often"
	}
	return ""
}

// unreachable is an error of the network, without the address, which may hold a signature.
func (c *Client) unreachable(q question, at *url.URL, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	t := &temporary{error: &fault{reason: ErrUnreachable, cause: err,
		text: fmt.Sprintf("%s cannot be reached for %s: %v", at.Host, q.repo, err)}}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		t.tries = 3
		if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
			t.tries = 1 // most often there is no network
		}
	}
	return t
}

func laterText(after time.Duration) string {
	if after == 0 {
		return " later"
	}
	return " in " + after.Round(time.Second).String()
}

func colon(said string) string {
	if said == "" {
		return ""
	}
	return ": " + said
}

// printable is a server's text in one short line.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200]) + "…"
	}
	return strings.TrimRight(strings.TrimSpace(text), ".")
}

// status is the status of a response, as this program words it: a server's words may be any.
func status(r *http.Response) string {
	return strings.TrimSpace(fmt.Sprint(r.StatusCode, " ", http.StatusText(r.StatusCode)))
}

func host(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Host
	}
	return address
}
