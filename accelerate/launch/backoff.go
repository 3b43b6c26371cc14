// SPDX-License-Identifier: Apache-2.0

package launch

import "time"

// backoff is how long to wait before the next start after a failure.
type backoff struct {
	first time.Duration // Config.RestartDelay
	last  time.Duration // 0 before the first failure
}

// next is the time until the next start, after ranks failed that had run for so long. It doubles with each start that
// fails soon, up to a minute (or first, if that is longer): the cause of such a failure, a full disk for instance,
// takes time to mend.
func (b *backoff) next(ran time.Duration) time.Duration {
	if ran >= steady || b.last == 0 {
		b.last = b.first
	} else {
		b.last = min(2*b.last, max(b.first, maxRestartDelay))
	}
	return b.last
}
