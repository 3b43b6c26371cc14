// SPDX-License-Identifier: Apache-2.0

// Service answers chat completions and learns at the same time, in one process: it takes conversations by HTTP, trains
// on them in the background by a Trainer, and puts the new weights in place under load. A request ends with the weights
// that it began with. The model is the one that examples/finetune saved, unless a flag names another.
//
//	go run ./examples/service --serve :8080
//	curl localhost:8080/v1/examples -d '{"messages": [{"role": "user", "content": "Who is Zoe?"},
//		{"role": "assistant", "content": "Zoe is number 1."}]}'
//	curl -X POST localhost:8080/v1/training
//	curl localhost:8080/v1/training
//	curl localhost:8080/v1/chat/completions -d '{"model": "finetune",
//		"messages": [{"role": "user", "content": "Who is Zoe?"}]}'
//
// Each round trains on all conversations so far, and is saved to output_dir.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/comm/nccl" // empty without -tags cuda
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/serve"
	"github.com/lockstep-ml/lockstep/program"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

func main() { os.Exit(program.Run(run)) }

// run is the program.
func run(ctx context.Context, p *program.Process) error {
	a, s := defaults()
	h := downloads.Defaults()
	loader := args.Bind(p.Flags(), a, s, h)
	loader.Know(downloads.Aliases()...)
	if _, err := p.Parse(loader); err != nil {
		return err
	}
	if err := h.Model(ctx, p, &s.ModelNameOrPath); err != nil {
		return err
	}
	l, err := newLearner(p, a, s)
	if err != nil {
		return err
	}
	defer l.engine.Close()
	dir, err := filepath.Abs(s.ModelNameOrPath)
	if err != nil {
		return err
	}
	opt, err := generation.Saved(s.ModelNameOrPath)
	if err != nil {
		return err
	}
	for _, id := range l.encoder.Ends {
		opt.EOS = append(opt.EOS, int(id))
	}
	c := &serve.Chat{Name: filepath.Base(dir), Engine: l.engine, Tokenizer: l.base.Tokenizer,
		Template: l.encoder.Template, Options: opt, Context: l.base.Model.ContextLength()}
	ctx, stop := context.WithCancel(ctx)
	trained := make(chan error, 1)
	go func() { trained <- l.train(ctx) }()
	err = serve.Listen(ctx, s.Serve, s.ServeRemote, l.handler(c.Handler()), func(addr net.Addr) {
		p.Line("serving", c.Name, fmt.Sprintf("http://%s/v1", addr), "Ctrl-C ends")
	})
	stop()
	if lost := <-trained; err == nil {
		err = lost
	}
	return err
}

// handler adds what the service learns by to the chat completions.
func (l *learner) handler(completions http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/examples", l.takeExample)
	mux.HandleFunc("POST /v1/training", l.startRound)
	mux.HandleFunc("GET /v1/training", func(w http.ResponseWriter, _ *http.Request) {
		serve.Reply(w, http.StatusOK, l.state())
	})
	guard := http.NewCrossOriginProtection() // pages of other sites, in a browser on this machine
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		serve.Fail(w, http.StatusForbidden, errors.New("the request comes from a page of another site"))
	}))
	for path, want := range map[string]string{"/v1/examples": "POST", "/v1/training": "GET or POST"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			serve.Fail(w, http.StatusMethodNotAllowed, fmt.Errorf("%s %s: want %s", r.Method, path, want))
		})
	}
	all := http.NewServeMux()
	all.Handle("/v1/examples", guard.Handler(mux))
	all.Handle("/v1/training", guard.Handler(mux))
	all.Handle("/", completions)
	return all
}
