// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names under which batches of preferences carry what texts do not have.
const (
	ReferenceLogProbs = "reference_logps" // [B,2], float32: of the chosen and the rejected answer, by the reference
	Margins           = "margin"          // [B], float32
)

// Why rows of preferences teach nothing: EncodePair returns these errors, wrapped.
var (
	ErrSameAnswers = errors.New("chosen and rejected are the same")
	ErrEmptyAnswer = errors.New("an answer is empty")
	ErrPairCut     = errors.New("the tokens to learn are after max_length")
)

// TruncationMode is how rows of preferences that are too long are cut, by TRL's names.
type TruncationMode string

// The modes.
const (
	KeepStart  TruncationMode = "keep_start" // the end of an answer is lost
	KeepEnd    TruncationMode = "keep_end"   // the beginning of the prompt is lost
	DropLonger TruncationMode = "drop"       // the row is: what TRL's RewardTrainer does
)

// PreferenceSample is an encoded Pair: the tokens of the prompt with either answer.
type PreferenceSample struct {
	Chosen, Rejected []int32
	// Where the answers begin in them: where the prompt's own tokens end, or the first token before that in which the
	// prompt with an answer differs from the prompt alone.
	ChosenStart, RejectedStart int
	// Merged is how many tokens of the prompt alone come after that place: the model would not see them so.
	Merged int
	// Cut is how many tokens MaxLength has taken from both.
	Cut    int
	Margin float64
	// Reference are the log-probabilities of both answers by the reference model; nil: they are not known.
	Reference *[2]float32
	// Length is that of the longer text, for samples that are grouped by length.
	Length int
}

// EncodePair makes a sample of a row of preferences as TRL's DPOTrainer does. Beside errors of the row and of the chat
// template it returns ErrSameAnswers, ErrEmptyAnswer and ErrPairCut. Where Ends are given the chosen answer must end on
// one of them, before it is cut.
func (e *Encoder) EncodePair(p Pair, mode TruncationMode) (s PreferenceSample, err error) {
	if p.blank() {
		return s, ErrEmptyAnswer
	}
	prompt, err := e.pairTexts(p, &s)
	if err != nil {
		return s, err
	}
	if slices.Equal(s.Chosen, s.Rejected) {
		return s, ErrSameAnswers
	}
	if len(e.Ends) > 0 {
		if err := e.stops(s.Chosen); err != nil {
			return s, fmt.Errorf("the chosen answer %w: want a chat template that ends answers with such a token", err)
		}
	}
	start := min(common(prompt, s.Chosen), common(prompt, s.Rejected))
	s.ChosenStart, s.RejectedStart, s.Merged, s.Margin = start, start, len(prompt)-start, p.Margin
	if err := s.cut(e.MaxLength, mode); err != nil {
		return s, err
	}
	s.Length = max(len(s.Chosen), len(s.Rejected))
	return s, nil
}

// pairTexts are the tokens of the prompt alone, and in s those of the prompt with both answers.
func (e *Encoder) pairTexts(p Pair, s *PreferenceSample) (prompt []int32, err error) {
	texts := [3]string{p.Prompt, p.Prompt + e.ended(p.Chosen), p.Prompt + e.ended(p.Rejected)}
	encode := e.Tokenizer.EncodeWithSpecial
	if p.PromptMessages != nil {
		encode = e.Tokenizer.Encode // the template has the special tokens
		c := Conversation{Messages: p.PromptMessages, Tools: p.Tools, Variables: p.Variables, GenerationPrompt: true}
		if texts[0], _, err = e.render(c); err != nil {
			return nil, err
		}
		c.GenerationPrompt = false
		for i, answer := range []json.RawMessage{p.ChosenMessages, p.RejectedMessages} {
			c.Messages = concat(p.PromptMessages, answer)
			if texts[1+i], _, err = e.render(c); err != nil {
				return nil, err
			}
		}
	}
	for i, to := range []*[]int32{&prompt, &s.Chosen, &s.Rejected} {
		if *to, err = encode(texts[i]); err != nil {
			return nil, err
		}
	}
	return prompt, nil
}

// common is how many tokens two texts begin with.
func common(a, b []int32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// cut makes both texts at most as long as length; 0: any.
func (s *PreferenceSample) cut(length int, mode TruncationMode) error {
	over := func(ids []int32) int { return max(0, len(ids)-length) }
	if length <= 0 || over(s.Chosen)+over(s.Rejected) == 0 {
		return nil
	}
	switch mode {
	case DropLonger:
		return fmt.Errorf("%w: the texts have %d and %d tokens", ErrPairCut, len(s.Chosen), len(s.Rejected))
	case KeepEnd:
		for _, t := range []struct {
			ids   *[]int32
			start *int
		}{{&s.Chosen, &s.ChosenStart}, {&s.Rejected, &s.RejectedStart}} {
			n := over(*t.ids)
			*t.ids, *t.start, s.Cut = (*t.ids)[n:], max(0, *t.start-n), s.Cut+n
		}
	default:
		if s.ChosenStart >= length {
			return fmt.Errorf("%w: the prompt has %d tokens", ErrPairCut, s.ChosenStart)
		}
		s.Cut = over(s.Chosen) + over(s.Rejected)
		s.Chosen, s.Rejected = s.Chosen[:min(length, len(s.Chosen))], s.Rejected[:min(length, len(s.Rejected))]
	}
	if slices.Equal(s.Chosen, s.Rejected) {
		return fmt.Errorf("%w: the first %d tokens of both answers are the same", ErrPairCut, length-s.ChosenStart)
	}
	return nil
}

// blank reports whether an answer has nothing but white space.
func (p *Pair) blank() bool {
	if p.PromptMessages == nil {
		return strings.TrimSpace(p.Chosen) == "" || strings.TrimSpace(p.Rejected) == ""
	}
	for _, answer := range []json.RawMessage{p.ChosenMessages, p.RejectedMessages} {
		var messages []map[string]json.RawMessage
		if json.Unmarshal(answer, &messages) != nil {
			return false // the template says what is wrong
		}
		if !slices.ContainsFunc(messages, says) {
			return true
		}
	}
	return false
}

// says reports whether a message has anything but white space.
func says(message map[string]json.RawMessage) bool {
	for key, v := range message {
		var text string
		switch {
		case key == "role" || string(v) == "null" || string(v) == "[]":
		case json.Unmarshal(v, &text) != nil || strings.TrimSpace(text) != "":
			return true
		}
	}
	return false
}

// MarkedPair are the texts of a sample with ⟦ and ⟧ around the answers.
func (e *Encoder) MarkedPair(s PreferenceSample) (chosen, rejected string, err error) {
	mark := func(ids []int32, start int) (string, error) {
		learned := make([]bool, len(ids))
		for i := start; i < len(ids); i++ {
			learned[i] = true
		}
		return e.Marked(Sample{IDs: ids, Learned: learned})
	}
	if chosen, err = mark(s.Chosen, s.ChosenStart); err == nil {
		rejected, err = mark(s.Rejected, s.RejectedStart)
	}
	return chosen, rejected, err
}

// CollatePairs returns the Collator of preferences. Texts are padded on the right with the token pad, to the longest of
// the batch. The tensors are input_ids and shift_labels, int64 [B,2,T] with the chosen text of each row before the
// rejected one, and attention_mask, int64 [B,2,T], only if there is padding. shift_labels has the tokens of the
// answers, and tensor.IgnoreIndex in place of others. Where samples have them there are reference_logps, float32 [B,2],
// and margin, float32 [B]. The loss terms are pairs.
func CollatePairs(pad int32) data.Collator[PreferenceSample] {
	collate := Collate(pad)
	return func(c *tensor.Ctx, samples []PreferenceSample) (*data.Batch, error) {
		texts := make([]Sample, 0, 2*len(samples))
		for _, s := range samples {
			texts = append(texts, answered(s.Chosen, s.ChosenStart), answered(s.Rejected, s.RejectedStart))
		}
		b, err := collate(c, texts)
		if err != nil {
			return nil, err
		}
		for name, t := range b.Tensors {
			b.Tensors[name] = tensor.Reshape(c, t, len(samples), 2, -1)
		}
		b.Count = float64(len(samples))
		return b, addNumbers(c, b, samples)
	}
}

// answered is a text whose answer is learned.
func answered(ids []int32, start int) Sample {
	s := Sample{IDs: ids, Learned: make([]bool, len(ids))}
	for i := start; i < len(ids); i++ {
		s.Learned[i] = true
	}
	return s
}

// addNumbers gives a batch the numbers that samples have beside their texts.
func addNumbers(c *tensor.Ctx, b *data.Batch, samples []PreferenceSample) error {
	margins, known := make([]float32, len(samples)), 0
	reference := make([]float32, 0, 2*len(samples))
	for i, s := range samples {
		margins[i] = float32(s.Margin)
		if s.Reference != nil {
			reference = append(reference, s.Reference[:]...)
			known++
		}
	}
	if known > 0 && known < len(samples) {
		return fmt.Errorf("chat: %d of %d samples have log-probabilities of the reference: want all or none", known,
			len(samples))
	}
	if known > 0 {
		b.Tensors[ReferenceLogProbs] = tensor.FromSlice(c, reference, len(samples), 2)
	}
	if slices.ContainsFunc(margins, func(m float32) bool { return m != 0 }) {
		b.Tensors[Margins] = tensor.FromSlice(c, margins, len(samples))
	}
	return nil
}
