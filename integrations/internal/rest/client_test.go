// SPDX-License-Identifier: Apache-2.0

package rest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/integrations/internal/rest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "s3cret-token"

// client returns the client of a server that answers by its path, with a password in its address.
func client(t *testing.T) *rest.Client {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch r.URL.Path {
		case "/api/echo":
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, `{"method":%q,"query":%q,"body":%q,"user":%q,"password":%q,"key":%q}`, r.Method,
				r.URL.RawQuery, body, user, password, r.Header.Get("X-Key"))
		case "/api/there":
			http.Redirect(w, r, "https://elsewhere/"+password, http.StatusTemporaryRedirect)
		case "/api/page":
			fmt.Fprint(w, "<html>"+password)
		case "/api/cut":
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, password, "\n\nis not  ", strings.Repeat("ä", 1000))
		}
	}))
	t.Cleanup(s.Close)
	c, err := rest.New(strings.Replace(s.URL, "://", "://me:"+secret+"@", 1) + "/api/")
	require.NoError(t, err)
	c.Secret("X-Key", "Token ", "another"+secret)
	t.Cleanup(c.Close)
	return c
}

func TestExchange(t *testing.T) {
	c := client(t)
	var out map[string]string
	require.NoError(t, c.Post(t.Context(), "/echo", map[string]int{"a": 1}, &out))
	require.Equal(t, map[string]string{"method": "POST", "query": "", "body": `{"a":1}`, "user": "me",
		"password": secret, "key": "Token another" + secret}, out)
	require.NoError(t, c.Get(t.Context(), "/echo", url.Values{"name": {"a b"}}, &out))
	require.Equal(t, "name=a+b", out["query"])
}

// No error has a secret, whatever the server answers.
func TestErrors(t *testing.T) {
	c := client(t)
	for path, want := range map[string]string{
		"/there": "/api/there: 307 Temporary Redirect: it redirects to https://elsewhere/***: want the address",
		"/page":  "/api/page: the answer is not the JSON that was expected",
		"/cut":   "/api/cut: EOF",
		"/none":  "/api/none: 404 Not Found: *** is not ää",
	} {
		var out any
		err := c.Post(t.Context(), path, nil, &out)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), secret)
		require.Less(t, len(err.Error()), 400)
		var status *rest.StatusError
		require.Equal(t, path == "/there" || path == "/none", errors.As(err, &status) && status.Refused(), path)
	}
	require.NotContains(t, c.Refuse("not "+secret).Error(), secret)
	for _, bad := range []string{"", "host:80", "ftp://x", "http://", "http://x?token=" + secret,
		"http://a:" + secret + "@[x"} {
		_, err := rest.New(bad)
		require.ErrorContains(t, err, "want the address of a server")
		require.NotContains(t, err.Error(), secret)
	}
}

// Of what a server repeats, no error has a secret: not a part of it where the text is cut, nor another form of it.
func TestErrorsHideWhatServersRepeat(t *testing.T) {
	const password = `pa"ss/wo<rd `
	for _, blanks := range []int{0, 190, 5000} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			quoted, _ := json.Marshal(password)
			fmt.Fprint(w, strings.Repeat(" -", blanks/2), r.Header.Get("Authorization"), string(quoted),
				url.QueryEscape(password), url.PathEscape(password), password)
		}))
		t.Cleanup(s.Close)
		c, err := rest.New(s.URL)
		require.NoError(t, err)
		c.Basic("me", password)
		t.Cleanup(c.Close)
		err = c.Post(t.Context(), "/", nil, nil)
		require.ErrorContains(t, err, "401 Unauthorized")
		for _, part := range []string{"pa", "bWU", "rd"} {
			require.NotContains(t, strings.Replace(err.Error(), "Unauthorized", "", 1), part, blanks)
		}
	}
}
