// SPDX-License-Identifier: Apache-2.0

// Package jsonfloat stores numbers that may be NaN or infinite as JSON, which has no such numbers. Use [Float] for
// fields of saved states, such as a loss or the best metric so far.
package jsonfloat

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// Float is a float64 that is a text in JSON where it is not finite.
type Float float64

// MarshalJSON implements json.Marshaler.
func (f Float) MarshalJSON() ([]byte, error) {
	x := float64(f)
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return json.Marshal(strconv.FormatFloat(x, 'g', -1, 64))
	}
	return json.Marshal(x)
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Float) UnmarshalJSON(text []byte) error {
	x, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	*f = Float(x)
	return err
}
