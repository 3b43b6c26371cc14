// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// ModelfileName is the name of the file that ollama makes a model of.
const ModelfileName = "Modelfile"

// mostContext bounds num_ctx: ollama takes memory for so many tokens, however few a conversation has.
const mostContext = 8192

// Modelfile is the text of a file for "ollama create": it names a file of the model, its chat template in ollama's
// language, the tokens that end an answer, the length of the context, and how tokens are drawn, as the model's
// generation_config.json has it. A template that could not be put into ollama's language is left out, with a comment
// that gives the reason; ollama then looks for a built-in one that resembles the template in the file.
//
// Format: https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx.
func (m *Model) Modelfile(file string) string {
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("# ollama create NAME -f %s", ModelfileName)
	line("FROM ./%s", filepath.Base(file))
	if m.chat.template != nil {
		d, err := m.chat.dialect()
		switch {
		case err != nil:
			line("# no TEMPLATE: %s", strings.ReplaceAll(err.Error(), "\n", " "))
		default:
			line(`TEMPLATE """%s"""`, d.template())
			if d.fallback != "" {
				line(`SYSTEM """%s"""`, d.fallback)
			}
		}
	}
	line("PARAMETER num_ctx %d", min(m.context, mostContext))
	for _, id := range m.ends {
		if token, ok := m.tokenizer.Token(int32(id)); ok {
			line("PARAMETER stop %s", quoted(token))
		}
	}
	for _, p := range m.chat.parameters() {
		line("PARAMETER %s", p)
	}
	return b.String()
}

// quoted is a text as the value of a parameter.
func quoted(text string) string {
	if strings.ContainsAny(text, "\"\n\r") {
		return `"""` + text + `"""`
	}
	return `"` + text + `"`
}

// parameters are how tokens are drawn. ollama's defaults are others, so that what the model does not say is named too.
func (c *chatTemplate) parameters() []string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	o := &c.options
	list := []string{"temperature " + number(o.Temperature)}
	if o.Temperature > 0 {
		topP := o.TopP
		if topP == 0 {
			topP = 1
		}
		list = append(list, "top_k "+strconv.Itoa(o.TopK), "top_p "+number(topP), "min_p "+number(o.MinP))
	}
	penalty := o.RepetitionPenalty
	if penalty == 0 {
		penalty = 1
	}
	list = append(list, "repeat_penalty "+number(penalty))
	if penalty != 1 { // of all tokens, not of the last 64
		list = append(list, "repeat_last_n -1")
	}
	if o.MaxNewTokens > 0 {
		list = append(list, "num_predict "+strconv.Itoa(o.MaxNewTokens))
	}
	return list
}

// CheckModelfile refuses to replace a Modelfile beside a file unless that is asked for.
func (m *Model) CheckModelfile(file string, o WriteOptions) error {
	path := filepath.Join(filepath.Dir(file), ModelfileName)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("export: %w", err)
	case info.Mode().IsRegular() && o.Overwrite:
		return nil
	}
	return fmt.Errorf("export: %s exists: want another folder, or --overwrite (WriteOptions.Overwrite)", path)
}

// WriteModelfile writes the Modelfile beside a file, and returns its path.
func (m *Model) WriteModelfile(ctx context.Context, file string, o WriteOptions) (string, error) {
	if err := errors.Join(m.CheckModelfile(file, o), context.Cause(ctx)); err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(file), ModelfileName)
	err := replace(vfs.OS, path, func(w io.Writer) error {
		_, err := io.WriteString(w, m.Modelfile(file))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("export: %w", err)
	}
	return path, nil
}
