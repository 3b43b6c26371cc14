// SPDX-License-Identifier: Apache-2.0

// Package gpt provides a small GPT-2 and its data for the examples by feature: the text of the Apache License as a
// training and an evaluation set. A token is a byte. It is no example itself.
package gpt

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

const (
	length  = 32 // tokens of a sample
	heldOut = 64 // samples of the evaluation set
)

//go:embed license.txt
var text string

// Model is a GPT-2 with four blocks and about 830,000 parameters before training, on a device.
func Model(dev *tensor.Device) *gpt2.Model {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 4, 128, 4, 256, length
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	m, err := gpt2.New(nn.NewInit(dev, 42), cfg)
	if err != nil {
		panic(err) // the configuration above is valid
	}
	return m
}

// Train is the training set: all of the text but its end.
func Train() data.Source {
	ids := tokens()
	return source(ids[:len(ids)-heldOut*length])
}

// Eval is the evaluation set: the end of the text.
func Eval() data.Source {
	ids := tokens()
	return source(ids[len(ids)-heldOut*length:])
}

// tokens are the bytes of the text.
func tokens() data.TokenSlice {
	ids := make(data.TokenSlice, len(text))
	for i := range ids {
		ids[i] = int32(text[i])
	}
	return ids
}

func source(ids data.TokenSlice) data.Source {
	blocks, err := data.TrainBlocks(ids, length)
	if err != nil {
		panic(err) // the text is longer
	}
	return data.NewSource(blocks, data.CausalLM(0))
}

// SameBits compares the parameters of two models of one architecture.
func SameBits(a, b nn.Module) bool {
	read := func(p tensor.Named) []byte { return tensor.ReadBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Tensor) }
	return slices.EqualFunc(nn.NamedParameters(a), nn.NamedParameters(b), func(p, q tensor.Named) bool {
		return bytes.Equal(read(p), read(q))
	})
}

// Hash is the beginning of a hash of a model's parameters: models with the same bits have the same.
func Hash(m nn.Module) string {
	h := sha256.New()
	for _, p := range nn.NamedParameters(m) {
		h.Write(tensor.ReadBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Tensor))
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}
