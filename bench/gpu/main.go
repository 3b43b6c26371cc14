// SPDX-License-Identifier: Apache-2.0

// Gpu measures Lockstep on a GPU, one thing a call, and makes a table of what it and its peers measured. pack.sh packs
// it with all that a machine with a GPU needs, and day.sh, which is packed too, calls it and its peers in turn:
//
//	bench/gpu/pack.sh out/gpu          # here
//	out/gpu/day.sh correctness         # there; then speed, peers and tools
//
// Build it with -tags cuda. The device fake, which every build has, runs the same kernels in an interpreter: it shows
// that all of it works, and its figures mean nothing.
//
// //      gpu devices                     opens the devices and says what they are //     gpu products
// the rate of matrix products, which is the ceiling of all else //        gpu attention                   attention
// alone, forward and backward //        gpu gpt2, gpu decoder, gpu resnet //
// training steps by the Trainer; a decoder is of --model_config //        gpu decode                      a decoder
// generates //  gpu table FILE                  makes the table of lines RESULT
//
// Lines RESULT have a row, who measured, a value and its unit; the rest is for readers.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

// settings are the flags of all commands.
type settings struct {
	device           string
	steps, batch     int
	block            int // tokens of a sample
	layers, width    int // of GPT-2; 0: those of the one with 124 M parameters
	heads, vocab     int
	image            int // rows and columns
	size             int // of matrices
	workers          int // that read batches ahead
	dropout          float64
	float32          bool
	curve, save, row string
	text             string  // folder
	config           string  // file config.json
	rate             float64 // learning rate
}

var commands = map[string]func(*settings, []string) error{
	"devices": devices, "products": products, "attention": attention, "gpt2": trainGPT2,
	"decoder": trainDecoder, "decode": decode, "resnet": trainResNet,
	"table": func(_ *settings, files []string) error { return table(os.Stdout, files) },
}

func main() {
	var s settings
	pflag.StringVar(&s.device, "device", "cuda:0", "where to compute: cuda:0, fake or cpu")
	pflag.IntVar(&s.steps, "steps", 30, "steps, or repetitions, of which the first third is not timed")
	pflag.IntVar(&s.batch, "batch", 16, "samples of a step")
	pflag.IntVar(&s.block, "block", 1024, "tokens of a sample")
	pflag.IntVar(&s.layers, "n_layer", 12, "layers of GPT-2")
	pflag.IntVar(&s.width, "n_embd", 768, "its width")
	pflag.IntVar(&s.heads, "n_head", 12, "its heads")
	pflag.IntVar(&s.vocab, "vocab_size", 50257, "its vocabulary")
	pflag.IntVar(&s.image, "image", 224, "rows and columns of an image")
	pflag.IntVar(&s.size, "size", 8192, "rows and columns of matrices")
	pflag.IntVar(&s.workers, "workers", 0, "goroutines that read batches ahead")
	pflag.Float64Var(&s.dropout, "dropout", 0, "dropout of GPT-2")
	pflag.BoolVar(&s.float32, "float32", false, "compute in float32 instead of under bf16")
	pflag.Float64Var(&s.rate, "learning_rate", 3e-4, "learning rate, constant")
	pflag.StringVar(&s.curve, "curve", "", "write the loss of each step to this file")
	pflag.StringVar(&s.save, "save", "", "save the model to this folder before training, for a peer to begin with")
	pflag.StringVar(&s.text, "text", "", "train on the files of this folder; default: the Go standard library's source")
	pflag.StringVar(&s.config, "model_config", "", "config.json of the model that decoder trains")
	pflag.StringVar(&s.row, "row", "", "name of the row; default: the command's")
	pflag.Parse()
	if err := run(&s, pflag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}

func run(s *settings, argv []string) error {
	if len(argv) == 0 || commands[argv[0]] == nil {
		return errors.New("want a command: devices, products, attention, gpt2, decoder, decode, resnet or table")
	}
	if s.row == "" {
		s.row = argv[0]
	}
	if s.steps < 3 || s.batch < 1 || s.block < 2 {
		return fmt.Errorf("--steps %d --batch %d --block %d: want at least 3, 1 and 2", s.steps, s.batch, s.block)
	}
	tensor.RegisterDevice("fake", func() (*tensor.Device, error) {
		d, err := backend.Open(fake.New(fake.Options{Memory: 4 << 30}), 0)
		if err != nil {
			return nil, err
		}
		return joint.Device[*tensor.Device](d), nil
	})
	return commands[argv[0]](s, argv[1:])
}

// open opens the device that is to be measured. Without one the error begins with "no device".
func (s *settings) open() (*tensor.Device, error) {
	d, err := tensor.OpenDevice(s.device)
	if err != nil && strings.HasPrefix(s.device, "cuda") {
		// What is missing stands with the name that a machine without devices has.
		if _, why := tensor.OpenDevice("cuda"); why != nil && slices.Contains(tensor.DeviceNames(), "cuda") {
			err = why
		}
		return nil, fmt.Errorf("no device: %w", err)
	}
	return d, err
}

// result prints a line of the table.
func result(row string, value float64, unit string) {
	fmt.Printf("RESULT %s lockstep %.6g %s\n", row, value, unit)
}

// devices opens the device, says what it is, and has it add two numbers.
func devices(s *settings, _ []string) error {
	fmt.Println("devices of this program:", strings.Join(tensor.DeviceNames(), " "))
	d, err := s.open()
	if err != nil {
		return err
	}
	defer d.Close()
	c := tensor.NewCtx(d).NoGrad()
	var sum float64
	if err := tensor.Try(func() {
		x := tensor.Full(c, tensor.Float32, 20, 1)
		sum = tensor.Item(c, tensor.Add(c, x, tensor.Full(c, tensor.Float32, 22, 1)))
	}); err != nil {
		return err
	}
	if sum != 42 {
		return fmt.Errorf("20 + 22 is %v on %s", sum, d.Name())
	}
	fmt.Printf("%s works, %d bytes reserved\n", d.Name(), d.MemStats().Reserved)
	return nil
}
