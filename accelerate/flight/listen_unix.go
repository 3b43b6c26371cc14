// SPDX-License-Identifier: Apache-2.0

//go:build unix

package flight

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// listen writes records upon SIGUSR2, which programs may wait for too, and when they are asked for by [Ask].
func listen(log *slog.Logger) (stop func()) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGUSR2)
	go func() {
		for {
			select {
			case <-signals:
				report(log)
			case <-done:
				return
			}
		}
	}()
	hangUp := answer(log)
	return func() {
		signal.Stop(signals)
		close(done)
		hangUp()
	}
}
