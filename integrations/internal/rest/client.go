// SPDX-License-Identifier: Apache-2.0

// Package rest exchanges JSON with the servers of experiment trackers. It follows no redirects, reads a bounded part of
// an answer, and keeps secrets out of errors. It repeats nothing: package tracker does.
package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// most is how much of an answer is read, in bytes.
const most = 16 << 20

// Client is one server.
type Client struct {
	base    string // without a slash at the end
	header  http.Header
	secrets []string
	http    *http.Client
}

// New returns the client of the server at an address, as "https://host/path". A user and a password in the address are
// sent as Basic authorization. The error does not repeat the address, which may have a password.
func New(address string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return nil, errors.New("want the address of a server, as https://host or http://host:port/path")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1
	c := &Client{header: http.Header{"Content-Type": {"application/json"}, "User-Agent": {"lockstep"}},
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}}
	if u.User != nil {
		password, _ := u.User.Password()
		c.Basic(u.User.Username(), password)
		u.User = nil
	}
	c.base = strings.TrimRight(u.String(), "/")
	return c, nil
}

// Base returns the server's address, without a password.
func (c *Client) Base() string { return c.base }

// Basic authorizes by a user and a password.
func (c *Client) Basic(user, password string) {
	r := http.Request{Header: c.header}
	r.SetBasicAuth(user, password)
	c.secret(password)
	c.secret(strings.TrimPrefix(c.header.Get("Authorization"), "Basic ")) // a server may repeat what it was sent
}

// Bearer authorizes by a token.
func (c *Client) Bearer(token string) { c.Secret("Authorization", "Bearer ", token) }

// Header sends a header.
func (c *Client) Header(name, value string) { c.header.Set(name, value) }

// Secret sends a header whose value, behind the prefix, is never told.
func (c *Client) Secret(name, prefix, secret string) {
	c.header.Set(name, prefix+secret)
	c.secret(secret)
}

// secret hides a text, and the forms in which a server may repeat it.
func (c *Client) secret(text string) {
	if text == "" {
		return
	}
	quoted, _ := json.Marshal(text) // which cannot fail
	for _, form := range []string{text, strings.Trim(string(quoted), `"`), url.QueryEscape(text),
		url.PathEscape(text)} {
		if !slices.Contains(c.secrets, form) {
			c.secrets = append(c.secrets, form)
		}
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Post sends in as JSON and decodes the answer to out, if that is not nil.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("POST %s: %w", path, err)
	}
	return c.do(ctx, http.MethodPost, path, body, out)
}

// Get asks for a path with a query.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	return c.do(ctx, http.MethodGet, path+"?"+query.Encode(), nil, out)
}

func (c *Client) do(ctx context.Context, method, path string, body []byte, out any) error {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return c.hide(err)
	}
	request.Header = c.header.Clone()
	response, err := c.http.Do(request)
	if err != nil {
		var u *url.Error // which repeats the address
		if errors.As(err, &u) {
			err = u.Err
		}
		return c.hide(fmt.Errorf("%s %s: %w", method, c.base+path, err))
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err != nil {
		return c.hide(fmt.Errorf("%s %s: reading the answer: %w", method, c.base+path, err))
	}
	if response.StatusCode/100 != 2 {
		return c.status(method+" "+c.base+path, response, text)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return c.hide(fmt.Errorf("%s %s: the answer is not the JSON that was expected: %w", method, c.base+path, err))
	}
	return nil
}

// StatusError is an answer that is not of the 200s.
type StatusError struct {
	Code    int
	Body    string // the first kilobyte
	message string
}

func (e *StatusError) Error() string { return e.message }

// Refused reports whether the same request would be answered alike.
func (e *StatusError) Refused() bool {
	return e.Code < 500 && e.Code != http.StatusRequestTimeout && e.Code != http.StatusTooManyRequests
}

func (c *Client) status(what string, response *http.Response, text []byte) error {
	body := string(text[:min(len(text), 1024)])
	line := c.masked(string(text[:min(len(text), 1<<16)])) // before it is cut, since half a secret is one too
	line = strings.Join(strings.Fields(line), " ")
	line = strings.ToValidUTF8(line[:min(len(line), 200)], "")
	if to := response.Header.Get("Location"); to != "" {
		line = "it redirects to " + to + ": want the address that answers"
	}
	return &StatusError{response.StatusCode, body,
		c.masked(fmt.Sprintf("%s: %s: %s", what, response.Status, line))}
}

// Refuse is an error for an answer that refuses the request in its text, as {"error": …} with status 200.
func (c *Client) Refuse(text string) error {
	return &StatusError{http.StatusBadRequest, text, c.masked(c.base + ": " + text)}
}

// hide is an error without secrets.
func (c *Client) hide(err error) error {
	if text := c.masked(err.Error()); text != err.Error() {
		return errors.New(text)
	}
	return err
}

func (c *Client) masked(text string) string {
	for _, s := range c.secrets {
		text = strings.ReplaceAll(text, s, "***")
	}
	return text
}
