// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"math"
	"strings"
)

// tokenBits estimates from above how hard a token is to guess: by the variety of its bytes, and by what it is put
// together of, whichever is less.
func tokenBits(token []byte) float64 { return min(varietyBits(token), partBits(token)) }

// varietyBits counts what is repeated once, and of it the bytes or the steps between them, whichever vary less.
func varietyBits(token []byte) float64 {
	n := len(token)
	for period := 1; period <= n/2; period++ {
		if bytes.Equal(token[period:], token[:n-period]) { // all of it repeats its beginning
			n = period
			break
		}
	}
	steps := make([]byte, n)
	for i := range steps {
		steps[i] = token[i] - token[(i+n-1)%n]
	}
	return float64(n) * min(variety(token[:n]), variety(steps))
}

// variety is the entropy of the bytes' frequencies, in bits.
func variety(b []byte) (bits float64) {
	var count [256]int
	for _, c := range b {
		count[c]++
	}
	for _, c := range count {
		if c > 0 {
			p := float64(c) / float64(len(b))
			bits -= p * math.Log2(p)
		}
	}
	return bits
}

// The bits that parts of a token count as, beside those of where they are repeated from.
const (
	wordBits   = 10 // of a list of 1,024
	runBits    = 4  // the length of a run such as 1234 or aaaa, beside its first byte
	repeatBits = 3  // the length of what stood in the token before
)

// maxParts is how many bytes of a token are looked at. Those that follow could only add to the estimate.
const maxParts = 128

// partBits is the least that describes a token as a sequence of common words, runs, repeats and single bytes.
func partBits(token []byte) float64 {
	token = bytes.ToLower(token[:min(len(token), maxParts)])
	single := variety(token)
	least := make([]float64, len(token)+1) // of each beginning of the token
	for end := 1; end <= len(token); end++ {
		least[end] = least[end-1] + single
		for begin := end - 3; begin >= 0; begin-- {
			part := token[begin:end]
			bits := math.Inf(1)
			switch {
			case isRun(part):
				bits = single + runBits
			case commonWords[string(part)]:
				bits = wordBits
			case len(part) >= 4 && bytes.Contains(token[:begin], part):
				bits = math.Log2(float64(begin)) + repeatBits
			}
			least[end] = min(least[end], least[begin]+bits)
		}
	}
	return least[len(token)]
}

// isRun reports whether each byte follows on the one before: abcd, 9876, 7890, aaaa.
func isRun(part []byte) bool {
	for _, step := range []int{-1, 0, 1} {
		follows := true
		for i := 1; i < len(part) && follows; i++ {
			a, b := int(part[i-1]), int(part[i])
			follows = b-a == step || step == 1 && a == '9' && b == '0' || step == -1 && a == '0' && b == '9'
		}
		if follows {
			return true
		}
	}
	return false
}

// commonWords are words that people make secrets of, and rows of keys.
var commonWords = func() map[string]bool {
	words := map[string]bool{}
	for _, w := range strings.Fields(`
		abc able about access account admin administrator adobe after again agent alex alpha amazing amber america
		andrew angel angela animal anna another apple april arsenal asdf asdfgh asdfghjkl ashley august austin autumn
		baby backup bailey banana baseball basic basket batman battery beach bear beautiful because bigdog bird black
		blue boston box brandon bravo bread bridge brother buster butterfly camera cat champion changeme changethis
		charlie cheese chelsea chester chicken chocolate christmas city class claude clean clear cloud cluster code
		coffee compute computer cookie cool correct cowboy crypto cup dallas dance daniel data database david
		december deep default delta demo denver developer diamond distributed doctor dog dolphin dont down dragon
		dream eagle earth echo elephant email enter epoch error example family father february file fire fish
		flower fluffy football forever forest forget free freedom friday friend fun future game garden george ghost
		ginger girl global goat gold golden good google gpu gradient grand great green guest guitar hammer handsome
		hannah happy hardcore harley hello help hidden hockey home honey horse host house hunter iloveyou india
		internet iron jackson james january jasmine jennifer jessica job john jordan joseph joshua july june junior
		justin key keyboard killer king knight lady learning letmein liberty life lion little local lockstep login
		london long look lost love lover lucky machine maggie magic main manager march maria marine mark market
		marlboro martin master matrix matthew maverick may melissa mercedes michael michelle mickey mike milk mine
		model monday money monkey monster moon morning mother mountain mouse music mustang mypassword mysecret name
		network never nicole night ninja node north november number october ocean office open orange oracle panda
		pass passphrase passw0rd passwd password peace peanut pepper perfect phoenix pizza please pokemon police
		prince princess private process public purple qaz qazwsx queen qwert qwerty qwertyuiop rabbit rainbow ranger
		rank red remote river robert rocket root rose run saturday school scooter secret secure security september
		server shadow shared silver simple sister smith snow soccer soft some something spring star staple starwars
		steel step strong student summer sun sunday sunshine super superman superstar support sweet system taylor
		teacher temp temporary tensor test testing thank there thing this thomas thunder thursday tiger time token
		tomorrow torch train trainer training trust tuesday turtle tweety unicorn user victory violet water wednesday
		weight welcome whatever white william window winner winter wizard wolf woman wonder word work world worker
		xxx yankees year yellow yesterday your zebra zxcv zxcvbn zxcvbnm 1q2w3e 1q2w3e4r 1qaz 1qaz2wsx 2wsx 3edc
		foo bar baz qux one two three four five six seven eight nine zero`) {
		words[w] = true
	}
	return words
}()
