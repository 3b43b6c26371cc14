// SPDX-License-Identifier: Apache-2.0

package rendezvous

import "time"

// SetRedial shortens the time for which a rank may dial again.
func (s *Server) SetRedial(d time.Duration) { s.redial = d }

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
