// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

// TokenizerFile is the tokenizer's file in a saved model's folder.
const TokenizerFile = "tokenizer.json"

// TokenReader is implemented by models that read token ids. The trainer then names the file and the position of an id
// that the model does not have (data.WithVocabulary).
type TokenReader interface {
	Model
	// VocabSize is the number of tokens that the model knows: ids are 0 to VocabSize()-1.
	VocabSize() int
}

// loadTokenizer reads the tokenizer in the folder of a saved model, which r was loaded from. A tokenizer of more tokens
// than r knows is an error that names them: it has been extended, and the model has not.
func loadTokenizer(dir string, r TokenReader) (*tokenizers.Tokenizer, error) {
	path := filepath.Join(dir, TokenizerFile)
	tok, err := tokenizers.Load(path)
	if err != nil {
		return nil, err
	}
	return tok, fits(path, tok, r.VocabSize())
}

// fits compares the sizes of a tokenizer and of a model.
func fits(path string, tok *tokenizers.Tokenizer, size int) error {
	if tok.VocabSize() <= size {
		return nil
	}
	var beyond []string
	for id := size; id < tok.VocabSize() && len(beyond) < 3; id++ {
		text, err := tok.Decode([]int32{int32(id)})
		if err != nil {
			return err
		}
		beyond = append(beyond, fmt.Sprintf("%d is %q", id, text))
	}
	return fmt.Errorf("models: %s has %d tokens, more than the model's %d: %s. Want the tokenizer of this model; or, "+
		"if tokens were added to it, a larger model, by LoadPretrained and ResizeTokenEmbeddings(%[2]d, 0), or in "+
		"Python by model.resize_token_embeddings(len(tokenizer))", path, tok.VocabSize(), size,
		strings.Join(beyond, ", "))
}
