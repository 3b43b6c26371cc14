// SPDX-License-Identifier: Apache-2.0

package prometheus_test

import (
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/trackertest"
	"github.com/lockstep-ml/lockstep/integrations/prometheus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// free returns an address at which nobody listens.
func free(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func begin(t *testing.T, address string) *trackertest.Run {
	reporter, err := prometheus.New(address)
	require.NoError(t, err)
	a := args.Default(t.TempDir())
	a.RunName = "my \"run\"\n"
	return trackertest.New(t, a, reporter)
}

// scrape asks the endpoint until it has a line with some text, which it gets from another goroutine.
func scrape(t *testing.T, address, text string) (string, *http.Response) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var body string
	var response *http.Response
	require.Eventually(t, func() bool {
		r, err := client.Get("http://" + address + "/metrics")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		body, response = string(b), r
		return err == nil && strings.Contains(body, text)
	}, 30*time.Second, 10*time.Millisecond)
	return body, response
}

func TestEndpoint(t *testing.T) {
	told := trackertest.Logged(t)
	address := free(t)
	r := begin(t, address)
	r.Begin()
	for step := range int64(200) { // a hundred rows do not wait
		r.Log(step+1, callbacks.Record{"loss": 0.5, "eval_a(b)": math.NaN(), "low": math.Inf(-1), "memory_rss": 1 << 20,
			"note": "text", "step": step + 1})
	}
	body, response := scrape(t, address, "lockstep_step{")
	require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", response.Header.Get("Content-Type"))
	labels := regexp.MustCompile(`\{run="my \\"run\\"\\n",run_id="[a-z0-9]{8}"\}`)
	require.Equal(t, 6, len(labels.FindAllString(body, -1)), body)
	plain := labels.ReplaceAllString(body, "")
	require.Regexp(t, `^# TYPE lockstep_eval_a_b_ gauge
lockstep_eval_a_b_ NaN
# TYPE lockstep_loss gauge
lockstep_loss 0.5
# TYPE lockstep_low gauge
lockstep_low -Inf
# TYPE lockstep_memory_rss_bytes gauge
lockstep_memory_rss_bytes 1.048576e\+06
# TYPE lockstep_record_timestamp_seconds gauge
lockstep_record_timestamp_seconds 1\.\d+e\+09
# TYPE lockstep_step gauge
lockstep_step \d+
$`, plain)
	r.End("")
	_, err := net.Dial("tcp", address)
	require.Error(t, err, "the endpoint ends with the run")
	require.NotContains(t, told.String(), "WARN")
}

// An address that is taken costs a warning.
func TestTakenAddress(t *testing.T) {
	told := trackertest.Logged(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	r := begin(t, l.Addr().String())
	r.Begin()
	r.Log(1, callbacks.Record{"loss": 0.5})
	r.End("")
	require.Contains(t, told.String(), "a reporter cannot send; the run continues")
}

func TestAddress(t *testing.T) {
	for _, bad := range []string{"", "localhost", "localhost:x", "localhost:70000"} {
		_, err := prometheus.New(bad)
		require.ErrorContains(t, err, "want host:port")
	}
	t.Setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "-1")
	a := args.Default("out")
	a.ReportTo = []string{"prometheus"}
	_, err := callbacks.NewReporters(a)
	require.ErrorContains(t, err, `the address is "localhost:-1"`)
}
