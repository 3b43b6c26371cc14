// SPDX-License-Identifier: Apache-2.0

package opentelemetry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"unicode"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/rest"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// DefaultEndpoint is where a collector on the same host takes metrics by HTTP.
const DefaultEndpoint = "http://localhost:4318/v1/metrics"

// Config says where figures go. The zero value of a field is its default.
type Config struct {
	Endpoint string            // address with its path; by default DefaultEndpoint
	Headers  map[string]string // sent with each request; never told, since they may be keys
	Service  string            // service.name; by default lockstep
	Resource map[string]string // further attributes of the resource
}

func init() {
	callbacks.RegisterReporter("opentelemetry", func(*args.TrainingArguments) (callbacks.Callback, error) {
		c, err := FromEnvironment()
		if err != nil {
			return nil, err
		}
		return New(c)
	})
}

// FromEnvironment returns the configuration that OpenTelemetry's variables make: OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS
// and _PROTOCOL, before which those of OTEL_EXPORTER_OTLP_METRICS_ go, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
// It is an error if they ask for gRPC or for custom certificates.
func FromEnvironment() (c Config, err error) {
	if name, p := setting("PROTOCOL"); p != "" && p != "http/json" && p != "http/protobuf" {
		return c, fmt.Errorf("%s is %q: want http/json, and an endpoint for HTTP (of a collector, port 4318)", name, p)
	}
	for _, kind := range []string{"CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		if name, file := setting(kind); file != "" {
			return c, fmt.Errorf("%s is %q: want it unset; the system's certificates are used "+
				"(SSL_CERT_FILE)", name, file)
		}
	}
	c.Endpoint = os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
	if base := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"); c.Endpoint == "" && base != "" {
		c.Endpoint = strings.TrimRight(base, "/") + "/v1/metrics"
	}
	name, list := setting("HEADERS")
	if c.Headers, err = pairs(list); err != nil {
		return c, fmt.Errorf("%s: %w", name, err) // without the text, which may have a key
	}
	if c.Resource, err = pairs(os.Getenv("OTEL_RESOURCE_ATTRIBUTES")); err != nil {
		return c, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	c.Service = cmp.Or(os.Getenv("OTEL_SERVICE_NAME"), c.Resource["service.name"])
	return c, nil
}

// setting is a variable of metrics, or that of all signals.
func setting(kind string) (name, value string) {
	name = "OTEL_EXPORTER_OTLP_METRICS_" + kind
	if value = os.Getenv(name); value == "" {
		name = "OTEL_EXPORTER_OTLP_" + kind
		value = os.Getenv(name)
	}
	return name, strings.TrimSpace(value)
}

// pairs reads "a=1,b=2", whose values may have percent signs and two digits in place of characters.
func pairs(list string) (map[string]string, error) {
	all := map[string]string{}
	for i, pair := range strings.Split(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !ok || key == "" || err != nil {
			return nil, fmt.Errorf("entry %d: want key=value, with %%xx in place of commas and percent signs", i+1)
		}
		all[key] = value
	}
	return all, nil
}

// New returns the reporter of a configuration. It opens nothing yet.
func New(c Config) (callbacks.Callback, error) {
	c.Endpoint = cmp.Or(c.Endpoint, DefaultEndpoint)
	if _, err := c.client(); err != nil {
		return nil, err
	}
	c.Resource = maps.Clone(c.Resource)
	return tracker.New(tracker.Options{Name: "opentelemetry", Callback: "opentelemetry",
		Open: func(tracker.Run) []tracker.Destination {
			client, err := c.client()
			if err != nil {
				return nil // which New has seen
			}
			return []tracker.Destination{&run{config: c, client: client}}
		}}), nil
}

// shortestKey is the length of the shortest header that may be a key. A shorter one, as the number of a tenant, would
// hide parts of addresses.
const shortestKey = 8

// headerName is a token of RFC 9110.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func (c Config) client() (*rest.Client, error) {
	client, err := rest.New(c.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("the address of the collector (OTEL_EXPORTER_OTLP_ENDPOINT): %w", err)
	}
	for name, value := range c.Headers {
		if !headerName.MatchString(name) || strings.ContainsFunc(value, unicode.IsControl) {
			return nil, errors.New("the headers (OTEL_EXPORTER_OTLP_HEADERS): want names and values of HTTP headers")
		}
		if http.CanonicalHeaderKey(name) == "Content-Type" {
			return nil, errors.New("the headers (OTEL_EXPORTER_OTLP_HEADERS) have Content-Type: want it left out")
		}
		if len(value) < shortestKey {
			client.Header(name, value)
			continue
		}
		client.Secret(name, "", value)
	}
	return client, nil
}
