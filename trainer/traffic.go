// SPDX-License-Identifier: Apache-2.0

package trainer

// sentBytes is how many bytes this rank has sent to others so far.
func (r *run) sentBytes() int64 {
	if g := r.acc.DataRanks().Group(); g != nil {
		return g.Sent()
	}
	return 0
}

// trafficMetrics returns train_sent_bytes, the bytes that this rank sent to others in the run since its start or its
// resume, as messages without headers (see comm.Group.Sent); nothing of a rank that is alone.
func (r *run) trafficMetrics() map[string]float64 {
	if r.acc.DataRanks().Group() == nil {
		return nil
	}
	return map[string]float64{"train_sent_bytes": float64(r.sentBytes() - r.sent)}
}
