// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/program"
)

// addTokens gives the tokenizer the tokens that it lacks, and the model rows for them.
func (j *job) addTokens() error {
	old := j.base.Tokenizer
	isAdded := map[string]bool{}
	for _, a := range old.AddedTokens() {
		isAdded[a.Content] = true
	}
	var lacking []tokenizers.AddedToken
	var names []string
	for _, token := range j.AdditionalSpecialTokens {
		if !isAdded[token] {
			isAdded[token] = true
			lacking = append(lacking, tokenizers.AddedToken{Content: token, Special: true})
			names = append(names, token)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	if j.adapters.UsePEFT || j.adapters.Adapter != "" {
		return errors.New("additional_special_tokens: an adapter is saved without the embeddings of new tokens: " +
			"want training of the whole model, or a model that has the tokens")
	}
	grown, err := old.WithTokens(lacking...)
	if err != nil {
		return fmt.Errorf("additional_special_tokens: %w", err)
	}
	var file bytes.Buffer
	if _, err := grown.WriteTo(&file); err != nil {
		return err
	}
	j.base.Tokenizer = grown
	j.base.Replace(models.Sidecar{Name: models.TokenizerFile, Data: file.Bytes()})
	rows, err := j.resize(grown.VocabSize())
	if err != nil {
		return err
	}
	j.Line("added", strings.Join(names, ", "), rows)
	return nil
}

// resize gives the model so many tokens, if it has fewer, and says what became of it.
func (j *job) resize(tokens int) (string, error) {
	m, ok := j.base.Model.(models.Resizable)
	if !ok {
		return "", fmt.Errorf("additional_special_tokens: a %s has no ResizeTokenEmbeddings: want a tokenizer that "+
			"has the tokens", models.Architecture(j.base.Model))
	}
	before := m.VocabSize()
	if err := m.ResizeTokenEmbeddings(tokens, j.ResizeToMultipleOf); err != nil {
		return "", fmt.Errorf("additional_special_tokens: %w", err)
	}
	if m.VocabSize() == before {
		return fmt.Sprintf("in the model's %s", program.Count(before, "row")), nil
	}
	return fmt.Sprintf("%d rows become %d, the new ones their mean", before, m.VocabSize()), nil
}
