// SPDX-License-Identifier: Apache-2.0

package schedule

// message is what one rank sends another: the output of a stage, or the gradient of its input.
type message struct {
	at            float64 // when the pass that makes it starts
	from, to      int     // ranks
	send, receive Action
}

// message is the message that a pass makes, if another rank waits for one.
func (s *Schedule) message(a Action) (m message, ok bool) {
	send := Action{Stage: a.Stage, MicroBatch: a.MicroBatch}
	switch a.Op {
	case F:
		send.Op = SendF
	case I, B:
		send.Op = SendB
	default:
		return message{}, false
	}
	to := s.Peer(send)
	return message{from: s.StageToRank[a.Stage], to: to, send: send, receive: otherEnd(send)}, to >= 0
}

// needs lists the passes that may need the message.
func (m message) needs() []Op {
	if m.send.Op == SendF {
		return []Op{F}
	}
	return []Op{I, B}
}

// otherEnd is the receive of a send, and the other way round; the zero Action of what is neither.
func otherEnd(a Action) Action {
	switch a.Op {
	case SendF:
		return Action{Op: RecvF, Stage: a.Stage + 1, MicroBatch: a.MicroBatch}
	case SendB:
		return Action{Op: RecvB, Stage: a.Stage - 1, MicroBatch: a.MicroBatch}
	case RecvF:
		return Action{Op: SendF, Stage: a.Stage - 1, MicroBatch: a.MicroBatch}
	case RecvB:
		return Action{Op: SendB, Stage: a.Stage + 1, MicroBatch: a.MicroBatch}
	}
	return Action{}
}

// Peer is the rank at the other end of a send or a receive, or −1 if there is none: beyond the first stage and the
// last, between stages on one rank, and for other actions.
func (s *Schedule) Peer(a Action) int {
	other := otherEnd(a)
	if other.Op == Idle || min(a.Stage, other.Stage) < 0 || max(a.Stage, other.Stage) >= s.Stages() ||
		s.StageToRank[other.Stage] == s.StageToRank[a.Stage] {
		return -1
	}
	return s.StageToRank[other.Stage]
}
