// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"testing"

	"github.com/lockstep-ml/lockstep/models/modeltest"
)

func TestSuite(t *testing.T) {
	const sizes = `"model_type":"gpt2","vocab_size":11,"n_positions":8,"n_embd":8,"n_layer":2,"n_head":2,"initializer_range":0.2`
	for name, config := range map[string]string{
		"tied":       sizes,
		"untied":     sizes + `,"tie_word_embeddings":false`,
		"classifier": sizes + `,"architectures":["GPT2ForSequenceClassification"],"num_labels":3,"pad_token_id":10`,
	} {
		t.Run(name, func(t *testing.T) { modeltest.Run(t, "{"+config+"}", 8) })
	}
}
