// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/lockstep-ml/lockstep/args"
)

// ReporterFactory makes the callback that sends a run's records to an outside system. It opens nothing yet: that is for
// train_begin.
type ReporterFactory func(*args.TrainingArguments) (Callback, error)

var reporters = struct {
	sync.Mutex
	factories map[string]ReporterFactory
}{factories: map[string]ReporterFactory{}}

// RegisterReporter makes a reporter known to report_to by its name. Packages of integrations call it in init, so that a
// blank import of one makes it available. It panics if the name is taken or reserved (none, all).
func RegisterReporter(name string, factory ReporterFactory) {
	reporters.Lock()
	defer reporters.Unlock()
	if _, taken := reporters.factories[name]; taken || name == "" || name == args.ReportNone ||
		name == args.ReportAll || factory == nil {
		panic(fmt.Sprintf("callbacks: reporter %q is registered twice, reserved, or nil", name))
	}
	reporters.factories[name] = factory
}

// ReporterNames returns the names of the registered reporters, sorted.
func ReporterNames() []string {
	reporters.Lock()
	defer reporters.Unlock()
	return slices.Sorted(maps.Keys(reporters.factories))
}

// NewReporters makes the callbacks that report_to asks for, in its order; all means every registered one, sorted. The
// error for an unknown name lists those available. It is for package trainer.
func NewReporters(a *args.TrainingArguments) ([]Callback, error) {
	names, err := a.Reporters(ReporterNames()...)
	if err != nil {
		return nil, err
	}
	var out []Callback
	for _, name := range names {
		reporters.Lock()
		factory := reporters.factories[name]
		reporters.Unlock()
		c, err := factory(a)
		if err != nil {
			return nil, fmt.Errorf("callbacks: reporter %s: %w", name, err)
		}
		out = append(out, c)
	}
	return out, nil
}
