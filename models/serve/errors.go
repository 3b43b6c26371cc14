// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/lockstep-ml/lockstep/models/generation"
)

// The types of OpenAI's errors.
const (
	invalidRequest = "invalid_request_error"
	serverError    = "server_error"
	rateLimit      = "rate_limit_exceeded"
)

// apiError is an error as OpenAI writes it.
type apiError struct {
	status  int
	Message string
	Type    string
	Param   string // "": none
	Code    string // "": none
}

// MarshalJSON implements json.Marshaler.
func (e *apiError) MarshalJSON() ([]byte, error) {
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return json.Marshal(map[string]any{"error": map[string]any{"message": e.Message, "type": e.Type,
		"param": orNull(e.Param), "code": orNull(e.Code)}})
}

// refused is the fault of a request, in a parameter.
func refused(param, format string, values ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, Type: invalidRequest, Param: param,
		Message: fmt.Sprintf(format, values...)}
}

// Error implements error.
func (e *apiError) Error() string { return e.Message }

// Fail answers with an error as OpenAI's API writes it, a client's unless status is 500 or more. An error of [ReadBody]
// has its own status.
func Fail(w http.ResponseWriter, status int, err error) {
	var e *apiError
	if !errors.As(err, &e) {
		e = &apiError{status: status, Type: invalidRequest, Message: err.Error()}
		if status >= http.StatusInternalServerError {
			e.Type = serverError
		}
	}
	fail(w, e)
}

// fail writes an error.
func fail(w http.ResponseWriter, e *apiError) {
	if e.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(1))
	}
	Reply(w, e.status, e)
}

// errorOf is what a client hears of an error of the engine; nil if it has gone away.
func errorOf(err error) *apiError {
	switch {
	case errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, generation.ErrBusy):
		return &apiError{status: http.StatusTooManyRequests, Type: rateLimit, Code: rateLimit,
			Message: "As many requests wait as may: try again later"}
	case errors.Is(err, generation.ErrClosed):
		return &apiError{status: http.StatusServiceUnavailable, Type: serverError,
			Message: "The server is shutting down"}
	}
	return &apiError{status: http.StatusInternalServerError, Type: serverError, Message: err.Error()}
}
