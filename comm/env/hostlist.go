// SPDX-License-Identifier: Apache-2.0

package env

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHosts bounds what one expression may stand for, so that a typing error costs no memory.
const maxHosts = 1 << 20

// maxHost bounds the length of a name, which repeats for each of a range; a DNS name has at most 253 bytes.
const maxHost = 255

// ExpandHostList expands Slurm's short form of a list of hosts: "n[08-10,12]-ib,login" is
// n08-ib, n09-ib, n10-ib, n12-ib, login. A name may have several brackets; the last varies
// fastest, and the width of a range's first number is kept. At most 1048576 hosts.
func ExpandHostList(text string) ([]string, error) { return expandHostList(text, maxHosts) }

// expandHostList expands a list to at most limit hosts.
func expandHostList(text string, limit int) ([]string, error) {
	parts, err := splitOutside(text)
	if err != nil {
		return nil, fmt.Errorf("host list %q: %w", text, err)
	}
	var hosts []string
	for _, p := range parts {
		expanded, err := expandHost(p, limit)
		if err == nil && len(hosts)+len(expanded) > limit {
			err = fmt.Errorf("it expands to more than %d hosts", limit)
		}
		if err != nil {
			return nil, fmt.Errorf("host list %q: %w", text, err)
		}
		hosts = append(hosts, expanded...)
	}
	return hosts, nil
}

// splitOutside cuts at the commas that are in no bracket.
func splitOutside(text string) ([]string, error) {
	var parts []string
	depth, start := 0, 0
	for i, c := range text {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, text[start:i])
				start = i + 1
			}
		}
		if depth < 0 || depth > 1 {
			return nil, fmt.Errorf("a second %q at byte %d: want pairs of [ and ], none inside another", c, i)
		}
	}
	if depth != 0 {
		return nil, errors.New("a [ without its ]: want pairs of them")
	}
	parts = append(parts, text[start:])
	for _, p := range parts {
		if strings.TrimSpace(p) == "" {
			return nil, errors.New("nothing between two commas: want a host name")
		}
	}
	return parts, nil
}

// expandHost expands the brackets of one name, from left to right, to at most limit hosts.
func expandHost(name string, limit int) ([]string, error) {
	if outside := len(outsideOfBrackets(name)); outside > maxHost {
		return nil, fmt.Errorf("a name has %d bytes beside its brackets: want at most %d", outside, maxHost)
	}
	hosts := []string{""}
	for name != "" {
		head, rest, bracket := strings.Cut(name, "[")
		body, tail, _ := strings.Cut(rest, "]")
		numbers := []string{""}
		if bracket {
			var err error
			if numbers, err = expandRanges(body, limit); err != nil {
				return nil, err
			}
		}
		if len(hosts)*len(numbers) > limit {
			return nil, fmt.Errorf("it expands to more than %d hosts", limit)
		}
		next := make([]string, 0, len(hosts)*len(numbers))
		for _, h := range hosts {
			for _, n := range numbers {
				next = append(next, h+head+n)
			}
		}
		hosts, name = next, tail
	}
	return hosts, nil
}

// outsideOfBrackets is the name without its brackets and what is in them.
func outsideOfBrackets(name string) string {
	var b strings.Builder
	for name != "" {
		head, rest, _ := strings.Cut(name, "[")
		_, tail, _ := strings.Cut(rest, "]")
		b.WriteString(head)
		name = tail
	}
	return b.String()
}

// maxDigits is the largest width of a number: Slurm's hosts are 32 bits.
const maxDigits = 20

// expandRanges expands the inside of a bracket, "08-10,12", to at most limit numbers.
func expandRanges(text string, limit int) ([]string, error) {
	var numbers []string
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		if len(first) > maxDigits {
			return nil, fmt.Errorf("[%.20s…] has a number of %d digits: want at most %d", text, len(first), maxDigits)
		}
		lo, errLo := strconv.ParseUint(first, 10, 32)
		hi, errHi := strconv.ParseUint(last, 10, 32)
		if errLo != nil || errHi != nil || hi < lo {
			return nil, fmt.Errorf("[%s] is not a range: want a form such as [01-04,7]", text)
		}
		if hi-lo >= uint64(limit-len(numbers)) {
			return nil, fmt.Errorf("it expands to more than %d hosts", limit)
		}
		for n := lo; n <= hi; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return numbers, nil
}
