// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// DefaultEndpoint is the Hub.
const DefaultEndpoint = "https://huggingface.co"

// Client downloads into one cache. Its fields do not change once it is used; it is then safe for concurrent use.
type Client struct {
	// Endpoint is the server, with the beginning of its paths if they have one.
	Endpoint string
	// CacheDir has the folders of the repositories, as HF_HUB_CACHE.
	CacheDir string
	// Token is sent to the endpoint; "" is none.
	Token string
	// Offline forbids the network: what is not in the cache is an error.
	Offline bool
	// CopyFiles puts files into snapshots where others have links to blobs, as HF_HUB_DISABLE_SYMLINKS. Where links
	// cannot be made, as on Windows, this happens without it.
	CopyFiles bool
	// Timeout is how long a server may be silent; 0 is 10 seconds.
	Timeout time.Duration
	// UserAgent tells the server who asks; "" is Lockstep without a version.
	UserAgent string
	// Progress begins to show a download of a number of bytes; nil: nothing is shown.
	Progress func(name string, bytes int64) Meter
	// Log gets messages for the user; nil is slog.Default().
	Log *slog.Logger
	// Transport carries the requests; nil is one with the settings of http.DefaultTransport.
	Transport http.RoundTripper

	once      sync.Once
	transport http.RoundTripper

	// for tests
	wait  func(ctx context.Context, d time.Duration) error // nil: sleep
	chunk int64                                            // bytes of a request; 0: chunkBytes
	sink  func(io.Writer) io.Writer                        // what files are written to; nil: the files
	space func(dir string) (free int64, ok bool)           // nil: freeSpace
}

// Meter shows how far a download is. It is safe for concurrent use; callbacks.Phase is one.
type Meter interface {
	// Add tells that n more bytes have arrived; less than 0: that they have to come again.
	Add(n int64)
	// Close ends it.
	Close()
}

// maxToken bounds the file of a token.
const maxToken = 64 << 10

// FromEnvironment is a client with the settings of huggingface_hub's variables:
//
//	HF_ENDPOINT                           the server
//	HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE   the cache, or else the folder hub in
//	HF_HOME                               which is huggingface in XDG_CACHE_HOME, or ~/.cache, if it is not set
//	HF_TOKEN, HUGGING_FACE_HUB_TOKEN      the token, or else its file
//	HF_TOKEN_PATH                         which is token in HF_HOME if it is not set, as hf auth login writes it
//	HF_HUB_DISABLE_IMPLICIT_TOKEN         no token unless the program is given one
//	HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE  the cache alone
//	HF_HUB_DISABLE_SYMLINKS               copies in snapshots
//	HF_HUB_DOWNLOAD_TIMEOUT               seconds that a server may be silent
//	HF_HUB_DISABLE_TELEMETRY, DO_NOT_TRACK, DISABLE_TELEMETRY
//	                                      the server is told no version
//	HF_HUB_USER_AGENT_ORIGIN              what it is told beside the version
func FromEnvironment() (*Client, error) {
	home, err := homeDir()
	if err != nil {
		return nil, err
	}
	c := &Client{
		Endpoint: cmp.Or(strings.TrimRight(os.Getenv("HF_ENDPOINT"), "/"), DefaultEndpoint),
		CacheDir: expand(cmp.Or(os.Getenv("HF_HUB_CACHE"), os.Getenv("HUGGINGFACE_HUB_CACHE"), filepath.Join(home,
			"hub"))),
		Offline:   isTrue("HF_HUB_OFFLINE") || os.Getenv("HF_HUB_OFFLINE") == "" && isTrue("TRANSFORMERS_OFFLINE"),
		CopyFiles: isTrue("HF_HUB_DISABLE_SYMLINKS"),
		UserAgent: userAgent(),
	}
	if text := os.Getenv("HF_HUB_DOWNLOAD_TIMEOUT"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 0 {
			return nil, fmt.Errorf("hub: HF_HUB_DOWNLOAD_TIMEOUT is %q: want a number of seconds", text)
		}
		c.Timeout = time.Duration(seconds) * time.Second
	}
	if !isTrue("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
		c.Token, err = token(cmp.Or(expand(os.Getenv("HF_TOKEN_PATH")), filepath.Join(home, "token")))
	}
	return c, err
}

// homeDir is HF_HOME.
func homeDir() (string, error) {
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return expand(dir), nil
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(expand(dir), "huggingface"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("hub: no folder for the cache: %w: want HF_HOME to name one", err)
	}
	return filepath.Join(home, ".cache", "huggingface"), nil
}

// expand replaces variables and a leading ~, as huggingface_hub does.
func expand(dir string) string {
	if rest, ok := strings.CutPrefix(dir, "~"); ok && (rest == "" || os.IsPathSeparator(rest[0])) {
		if home, err := os.UserHomeDir(); err == nil {
			dir = home + rest
		}
	}
	return os.Expand(dir, func(name string) string {
		if value, ok := os.LookupEnv(name); ok {
			return value
		}
		return "$" + name
	})
}

func isTrue(name string) bool {
	switch strings.ToUpper(os.Getenv(name)) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// token is that of the environment, or of a file that hf auth login has written.
func token(file string) (string, error) {
	if t := cleanToken(cmp.Or(os.Getenv("HF_TOKEN"), os.Getenv("HUGGING_FACE_HUB_TOKEN"))); t != "" {
		return t, nil
	}
	if _, err := os.Stat(file); err != nil {
		return "", nil //nolint:nilerr // there is none, or none that this user may see
	}
	text, err := vfs.ReadFile(vfs.OS, file, maxToken)
	if err != nil {
		return "", fmt.Errorf("hub: the token: %w", err)
	}
	return cleanToken(string(text)), nil
}

func cleanToken(text string) string {
	return strings.TrimSpace(strings.NewReplacer("\r", "", "\n", "").Replace(text))
}

// ready checks the settings, and returns what carries the requests.
func (c *Client) ready() (http.RoundTripper, error) {
	base, err := url.Parse(c.Endpoint)
	if err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" || base.RawQuery != "" ||
		base.User != nil {
		return nil, fmt.Errorf("hub: HF_ENDPOINT is %q: want the address of a server, such as %s",
			withoutUser(c.Endpoint),
			DefaultEndpoint)
	}
	for _, r := range c.Token {
		if r <= ' ' || r > '~' {
			return nil, fmt.Errorf("hub: the token has characters that no token has: want one as %s/settings/tokens "+
				"shows it",
				DefaultEndpoint)
		}
	}
	c.once.Do(func() {
		if c.transport = c.Transport; c.transport == nil {
			t := http.DefaultTransport.(*http.Transport).Clone()
			t.MaxIdleConnsPerHost = connections
			c.transport = t
		}
	})
	return c.transport, nil
}

// withoutUser is an address without what stands before its host, which may be a password.
func withoutUser(address string) string {
	if at := strings.LastIndex(address, "@"); at >= 0 {
		return "…" + address[at:]
	}
	return address
}

// idle releases the connections.
func (c *Client) idle() {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

func (c *Client) log() *slog.Logger { return cmp.Or(c.Log, slog.Default()) }

func (c *Client) timeout() time.Duration { return cmp.Or(c.Timeout, 10*time.Second) }

// meter begins to show a download.
func (c *Client) meter(name string, bytes int64) Meter {
	if c.Progress != nil {
		if m := c.Progress(name, bytes); m != nil {
			return m
		}
	}
	return noMeter{}
}

type noMeter struct{}

func (noMeter) Add(int64) {}
func (noMeter) Close()    {}
