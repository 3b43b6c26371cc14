// SPDX-License-Identifier: Apache-2.0

package rendezvous

// Die ends the control connections as the end of the process would, without a word.
func (j *Job) Die() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	for _, l := range j.links {
		if l != nil {
			_ = l.conn.Close()
		}
	}
}
