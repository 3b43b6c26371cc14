// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate/simulation"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

const simulateJobUsage = `usage: lockstep simulate MODEL [FLAGS]
       lockstep simulate --mesh AXES [FLAGS]

Predicts a step of a whole job: its time, and for each rank how long it computes and waits, its
memory and the bytes that it sends. MODEL is a saved model's folder, a config.json, org/name of the Hub, or the
name of a published model, by default gpt2; weights are not read. The mesh is given as
--mesh dp_replicate=2,dp_shard=2,pp=4, or by --pp_size, --dp_replicate_size, --dp_shard_size,
--cp_size and --tp_size. The times of passes include the exchanges along cp and tp.
A pipeline has gradient_accumulation_steps micro-batches of per_device_train_batch_size samples.
Each rank of a pipeline runs two steps on a meta device, which has shapes but no values, so memory
and bytes are those of a run. Times follow from the hardware that the flags describe: a kernel takes
the time of its FLOPs or of its bytes, whichever is longer.

--kill rank=13,at=1.5s simulates the death of a rank, and --kill host=1,at=1.5s that of all ranks of
a host. The command then prints what the rank was doing, which rank notices first, when the others
end, which steps are lost (save_steps), and how long the job takes to restart and repeat them.

`

// jobSettings are those of a simulated job beside TrainingArguments.
type jobSettings struct {
	Mesh  string `json:"mesh" usage:"the sizes of the mesh, for example dp_replicate=2,dp_shard=2,pp=4"`
	Ranks int    `json:"ranks" usage:"ranks of the job; 0: the product of the mesh's sizes"`

	FLOPS           float64 `json:"flops" usage:"floating-point operations per second that a rank reaches in products"`
	MemoryBandwidth float64 `json:"memory_bandwidth" usage:"bytes per second that a rank's other kernels reach"`
	RanksPerHost    int     `json:"ranks_per_host" usage:"ranks of a host"`
	Bandwidth       float64 `json:"bandwidth" usage:"bytes per second from a rank to others of its host"`
	Latency         float64 `json:"latency" usage:"seconds until a message to a rank of the same host arrives"`
	HostBandwidth   float64 `json:"host_bandwidth" usage:"bytes per second from a rank to other hosts"`
	HostLatency     float64 `json:"host_latency" usage:"seconds until a message to another host arrives"`
	DiskBandwidth   float64 `json:"disk_bandwidth" usage:"bytes per second at which a rank reads a checkpoint"`
	StartSeconds    float64 `json:"start_seconds" usage:"seconds from the start of processes to their first step"`

	Kill string `json:"kill" usage:"end a rank or a host: rank=13,at=1.5s"`
	JSON bool   `json:"json" usage:"print JSON"`
	Draw bool   `json:"draw" usage:"draw each pass of the step"`
}

func defaultJob() *jobSettings {
	h := simulation.Default()
	return &jobSettings{FLOPS: h.FLOPS, MemoryBandwidth: h.MemoryBandwidth, RanksPerHost: h.RanksPerHost,
		Bandwidth: h.Within.Bandwidth, Latency: h.Within.Latency, HostBandwidth: h.Across.Bandwidth,
		HostLatency: h.Across.Latency, DiskBandwidth: h.Disk, StartSeconds: h.Start}
}

func (s *jobSettings) hardware() simulation.Hardware {
	return simulation.Hardware{FLOPS: s.FLOPS, MemoryBandwidth: s.MemoryBandwidth, RanksPerHost: s.RanksPerHost,
		Within: simulation.Link{Bandwidth: s.Bandwidth, Latency: s.Latency},
		Across: simulation.Link{Bandwidth: s.HostBandwidth, Latency: s.HostLatency}, Disk: s.DiskBandwidth,
		Start: s.StartSeconds}
}

// simulatesJob tells a job from a bare schedule: it has a model, a mesh, or a death.
func simulatesJob(argv []string) bool {
	return len(argv) > 0 && !strings.HasPrefix(argv[0], "-") || slices.ContainsFunc(argv, func(w string) bool {
		name, _, _ := strings.Cut(w, "=")
		return name == "--mesh" || name == "--kill" || string(underscores(nil, name)) == "--model_name_or_path"
	})
}

func (p *program) simulateJob(argv []string) int {
	a, of, s := args.Default(""), &modelSettings{DType: tensor.Float32.String()}, defaultJob()
	fs := pflag.NewFlagSet("simulate", pflag.ContinueOnError)
	loader := args.Bind(fs, a, of, s)
	if code, done := p.load(loader, argv, "simulate", simulateJobUsage); done {
		return code
	}
	words := fs.Args()
	if len(words) == 0 && of.Model == "" {
		words = []string{"gpt2"}
	}
	m, err := of.load(p, words)
	if err == nil {
		err = p.runJob(a, m, s)
	}
	if err != nil {
		return p.failed("simulate", err)
	}
	return exitOK
}

// runJob simulates a job and prints it.
func (p *program) runJob(a *args.TrainingArguments, m *sampleModel, s *jobSettings) error {
	if s.Mesh != "" {
		if err := setMesh(a, s.Mesh); err != nil {
			return err
		}
	}
	death, err := parseDeath(s.Kill, a)
	if err != nil {
		return err
	}
	h := s.hardware()
	if err := h.Check(); err != nil {
		return err
	}
	play, err := m.play(a, s.Ranks)
	if err != nil {
		return err
	}
	play.Cost = h.Kernel
	play.Exchange = h.Exchange(play.Mesh)
	memory, r, err := play.EstimateMemory()
	if err != nil {
		return err
	}
	strategy, mesh := a.ShardStrategy(), play.Mesh
	shards := mesh.Size(comm.DPShard | comm.CP)
	job := &simulation.Job{Hardware: h, Mesh: mesh, Schedule: r.Schedule, Pipeline: r.Ranks,
		Sharding: simulation.Sharding{Optimizer: strategy != args.NoShard && shards > 1,
			Parameters: (strategy == args.FullShard || strategy == args.ShardGradOp) && shards > 1}}
	step, err := job.Run()
	if err != nil {
		return err
	}
	v := &jobView{a: a, m: m, r: r, memory: memory, step: step}
	if death != nil {
		if v.outcome, err = step.Kill(*death); err != nil {
			return err
		}
		v.death = death
	}
	if s.JSON {
		return p.json(v.report())
	}
	return p.showJob(v, s.Draw)
}

// parseDeath reads who dies and when; nil for nobody.
func parseDeath(text string, a *args.TrainingArguments) (*simulation.Death, error) {
	if text == "" {
		return nil, nil
	}
	bad := &usageFault{fmt.Sprintf("kill is %q: want a rank or a host and a time, as rank=13,at=1.5s", text)}
	d := &simulation.Death{Rank: -1, Host: -1, At: -1}
	if a.SaveStrategy == args.StrategySteps {
		d.SaveSteps = int(a.SaveSteps)
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		var err error
		switch name {
		case "rank":
			d.Rank, err = strconv.Atoi(value)
		case "host":
			d.Host, err = strconv.Atoi(value)
		case "at":
			var at time.Duration
			at, err = time.ParseDuration(value)
			d.At = at.Seconds()
		default:
			return nil, bad
		}
		if err != nil {
			return nil, bad
		}
	}
	if (d.Rank < 0) == (d.Host < 0) || d.At < 0 {
		return nil, bad
	}
	return d, nil
}

// jobView is a simulated job as it is shown.
type jobView struct {
	a       *args.TrainingArguments
	m       *sampleModel
	r       *trainer.Rehearsal
	memory  []*trainer.MemoryEstimate
	step    *simulation.Step
	death   *simulation.Death
	outcome *simulation.Outcome
}

// jobReport is a simulated job in JSON. Times are seconds.
type jobReport struct {
	ModelType    string              `json:"model_type"`
	Count        int                 `json:"num_parameters"`
	Mesh         string              `json:"mesh"`
	Schedule     string              `json:"pp_schedule"`
	Split        []int               `json:"pp_split"`
	MicroBatches int                 `json:"micro_batches"`
	Hardware     simulation.Hardware `json:"hardware"`
	Time         float64             `json:"time"`
	Samples      float64             `json:"samples_per_second"`
	Bubble       float64             `json:"bubble"` // part of the ranks' time
	Ranks        []rankReport        `json:"ranks"`
	Death        *deathReport        `json:"death,omitempty"`
}

type rankReport struct {
	Rank     int                     `json:"rank"`
	Host     int                     `json:"host"`
	Stages   []int                   `json:"stages"`
	Busy     float64                 `json:"busy"`
	Bubble   float64                 `json:"bubble"`
	Exchange float64                 `json:"exchange"`
	Memory   *trainer.MemoryEstimate `json:"memory"`
	Sent     simulation.Traffic      `json:"sent"`
}

type deathReport struct {
	*simulation.Outcome
	LostSeconds float64 `json:"lost_seconds"`
	Detection   float64 `json:"detection_seconds"`
	Restart     float64 `json:"restart_seconds"`
	Total       float64 `json:"total_seconds"`
}

func (v *jobView) report() *jobReport {
	s := v.step
	out := &jobReport{ModelType: v.m.modelType, Count: v.m.parameters, Mesh: s.Job.Mesh.String(),
		Schedule: s.Job.Schedule.Name, Split: v.r.Split, MicroBatches: s.Job.Schedule.MicroBatches,
		Hardware: s.Job.Hardware, Time: s.Time, Samples: v.samples(), Bubble: s.Bubble()}
	for rank, r := range s.Ranks {
		out.Ranks = append(out.Ranks, rankReport{rank, r.Host, s.Job.Schedule.StagesOf(r.Pipeline), r.Busy, r.Bubble,
			r.Exchange, v.memory[r.Pipeline], r.Traffic})
	}
	if o := v.outcome; o != nil {
		out.Death = &deathReport{o, o.LostSeconds, o.Detection, o.Restart, o.Total}
	}
	return out
}

// samples is how many samples the job trains on in a second.
func (v *jobView) samples() float64 {
	s := v.step
	pipelines := s.Job.Mesh.Size(comm.DPReplicate | comm.DPShard)
	return float64(v.a.PerDeviceTrainBatchSize*s.Job.Schedule.MicroBatches*pipelines) / s.Time
}

// showJob prints the job as tables.
func (p *program) showJob(v *jobView, draw bool) error {
	s, columns := v.step, terminal.Width(p.stdout)
	fmt.Fprint(p.stdout, terminal.Lines(v.head()+v.times(), columns))
	if err := p.showRanks(v); err != nil {
		return err
	}
	if columns == 0 {
		columns = terminal.Full
	}
	switch {
	case draw:
		fmt.Fprint(p.stdout, "\nthe passes of a pipeline, by its ranks\n"+s.Passes.Text(columns))
	case len(s.Job.Pipeline) > 1:
		fmt.Fprint(p.stdout, "\nthe passes of a pipeline, by its ranks: what each does most of the time of a "+
			"column\n"+s.Passes.Bars(columns))
	}
	if v.outcome != nil {
		p.showDeath(v)
	}
	return nil
}

// head is what is simulated, and on what.
func (v *jobView) head() string {
	j, h, ranks := v.step.Job, v.step.Job.Hardware, v.step.Ranks
	return fmt.Sprintf("%s, %s parameters: %s on %s, mesh %s\n", v.m.modelType, quantity.Thousands(v.m.parameters),
		quantity.Of(len(ranks), "rank"), quantity.Of(ranks[len(ranks)-1].Host+1, "host"), j.Mesh) +
		fmt.Sprintf("%s: %s of %s parts, %s of %s%s\n", j.Schedule.Name, quantity.Of(j.Schedule.Stages(), "stage"),
			numbers(v.r.Split), quantity.Of(j.Schedule.MicroBatches, "micro-batch"),
			quantity.Of(v.a.PerDeviceTrainBatchSize, "sample"), v.sharding()) +
		fmt.Sprintf("hardware: %sFLOP/s and %sB/s of memory for each rank; %d ranks per host,\n", metric(h.FLOPS),
			metric(h.MemoryBandwidth), h.RanksPerHost) +
		fmt.Sprintf("  %sB/s and %s within a host, %sB/s and %s to others\n\n", metric(h.Within.Bandwidth),
			shortTime(h.Within.Latency), metric(h.Across.Bandwidth), shortTime(h.Across.Latency))
}

// times are the parts of a step.
func (v *jobView) times() string {
	s := v.step
	return fmt.Sprintf("a step takes %s, %.4g samples per second: passes %s, then gradients %s, optimizer %s%s; "+
		"%.1f %% bubble\n\n", shortTime(s.Time), v.samples(), shortTime(s.PassesEnd),
		shortTime(s.GradientsEnd-s.PassesEnd), shortTime(s.UpdateEnd-s.GradientsEnd), v.gathers(), 100*s.Bubble())
}

// sharding is what of the model is spread over ranks, in words.
func (v *jobView) sharding() string {
	if of := v.a.ShardStrategy(); v.step.Job.Sharding.Optimizer {
		return fmt.Sprintf("; sharded: %s", of)
	}
	return ""
}

// gathers says how long the step's last exchange takes.
func (v *jobView) gathers() string {
	if s := v.step; s.Time > s.UpdateEnd {
		return ", gathering " + shortTime(s.Time-s.UpdateEnd)
	}
	return ""
}

// showRanks prints a row for each rank, or for ranks that are alike.
func (p *program) showRanks(v *jobView) error {
	memory := [][]string{{"ranks", "stages", "busy", "bubble", "exchange", "params", "grads", "optim", "activations",
		"peak MiB"}}
	sent := [][]string{{"ranks", "MiB sent", "outputs", "input grads", "tied", "grads", "params"}}
	ranks, m := v.step.Ranks, v.step.Job.Mesh
	if m.TP > 1 {
		sent[0] = append(sent[0], "tensors")
	}
	if m.CP > 1 {
		sent[0] = append(sent[0], "tokens")
	}
	sent[0] = append(sent[0], "to other hosts")
	for from := 0; from < len(ranks); {
		r, to := ranks[from], from+1
		for to < len(ranks) && alike(r, ranks[to]) {
			to++
		}
		name := strconv.Itoa(from)
		if to > from+1 {
			name += fmt.Sprintf("–%d", to-1)
		}
		sent = append(sent, append([]string{name}, sentBy(r.Traffic, m)...))
		m := v.memory[r.Pipeline]
		memory = append(memory, append([]string{name, numbers(v.step.Job.Schedule.StagesOf(r.Pipeline)),
			shortTime(r.Busy), shortTime(r.Bubble), shortTime(r.Exchange)}, allMebibytes(m.Parameters, m.Gradients,
			m.OptimizerState, m.Activations, m.Peak)...))
		from = to
	}
	if err := p.showTable(memory); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout)
	return p.showTable(sent)
}

// sentBy are the cells of what a rank sends.
func sentBy(t simulation.Traffic, m comm.Mesh) []string {
	bytes := []int64{t.Sum(), t.Outputs, t.InputGradients, t.Tied, t.Gradients, t.Parameters}
	if m.TP > 1 {
		bytes = append(bytes, t.Tensors)
	}
	if m.CP > 1 {
		bytes = append(bytes, t.Tokens)
	}
	return allMebibytes(append(bytes, t.AcrossHosts)...)
}

// showTable prints rows, aligned to the right.
func (p *program) showTable(rows [][]string) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t\n", strings.Join(row, "\t"))
	}
	return w.Flush()
}

// allMebibytes are numbers of bytes in MiB.
func allMebibytes(bytes ...int64) (cells []string) {
	for _, n := range bytes {
		cells = append(cells, mebibytes(n))
	}
	return cells
}

// alike reports whether two ranks have one row.
func alike(a, b simulation.Rank) bool {
	a.Host, b.Host = 0, 0
	return a == b
}

// showDeath prints what comes of a death.
func (p *program) showDeath(v *jobView) {
	o := v.outcome
	text := fmt.Sprintf("\nrank %d dies at", o.Dead[0])
	if v.death.Rank < 0 {
		text = fmt.Sprintf("\nhost %d dies with %s at", v.death.Host, ranksOf(o.Dead))
	}
	text += fmt.Sprintf(" %s, %s into step %d: it %s\n", shortTime(v.death.At), shortTime(o.Into), o.Step,
		doing(o.Moment))
	for i, set := range endings(o.Survivors) {
		verbs := [2]string{"ends", "end"}
		if i == 0 {
			verbs = [2]string{"notices it first and ends", "notice it first and end"}
		}
		text += fmt.Sprintf("  %s later %s\n", shortTime(set[0].End), ending(set, verbs[min(len(set)-1, 1)]))
	}
	saved := "there is no checkpoint"
	if o.LastSaved > 0 {
		saved = fmt.Sprintf("the last checkpoint is of step %d", o.LastSaved)
	}
	text += fmt.Sprintf("%s: %s lost, %s of work\nthe restart takes %s; after %s the job is back where it was\n", saved,
		quantity.Of(o.LostSteps, "step"), shortTime(o.LostSeconds), shortTime(o.Restart), shortTime(o.Total))
	fmt.Fprint(p.stdout, terminal.Lines(text, terminal.Width(p.stdout)))
}

// mostEndings is how many lines a death has at most for its survivors.
const mostEndings = 24

// endings puts survivors together that end at once in the same action. The last set has the rest.
func endings(list []simulation.Survivor) (sets [][]simulation.Survivor) {
	for _, v := range list {
		i := slices.IndexFunc(sets, func(set []simulation.Survivor) bool {
			return set[0].End == v.End && set[0].Waits == v.Waits && set[0].Action == v.Action
		})
		switch {
		case i >= 0:
			sets[i] = append(sets[i], v)
		case len(sets) == mostEndings:
			sets[mostEndings-1] = append(sets[mostEndings-1], v)
		default:
			sets = append(sets, []simulation.Survivor{v})
		}
	}
	return sets
}

// ending says who ends, and what they do meanwhile.
func ending(set []simulation.Survivor, verb string) string {
	var list, of []int
	for _, v := range set {
		if list = append(list, v.Rank); v.For != "" && !slices.Contains(of, v.ForRank) {
			of = append(of, v.ForRank)
		}
	}
	m := set[0].Moment
	switch {
	case m.For != "":
		return fmt.Sprintf("%s %s, in %s for %s of %s", ranksOf(list), verb, m.Action, m.For, ranksOf(of))
	case m.Waits:
		return fmt.Sprintf("%s %s, in %s", ranksOf(list), verb, m.Action)
	}
	return fmt.Sprintf("%s %s, after %s", ranksOf(list), verb, m.Action)
}

// doing is what a rank does, in words.
func doing(m simulation.Moment) string {
	switch {
	case m.For != "":
		return fmt.Sprintf("waits in %s for %s of rank %d", m.Action, m.For, m.ForRank)
	case m.Waits:
		return "waits in " + m.Action
	}
	return "computes " + m.Action
}

// ranksOf lists ranks: "ranks 0–3, 8".
func ranksOf(list []int) string {
	list = slices.Sorted(slices.Values(list))
	var parts []string
	for from := 0; from < len(list); {
		to := from + 1
		for to < len(list) && list[to] == list[to-1]+1 {
			to++
		}
		part := strconv.Itoa(list[from])
		if to > from+1 {
			part += "–" + strconv.Itoa(list[to-1])
		}
		parts, from = append(parts, part), to
	}
	word := "rank "
	if len(list) > 1 {
		word = "ranks "
	}
	return word + strings.Join(parts, ", ")
}

// shortTime is a time with three digits.
func shortTime(s float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}} {
		if s >= unit.of {
			return fmt.Sprintf("%.3g %s", s/unit.of, unit.name)
		}
	}
	return fmt.Sprintf("%.3g s", s)
}

// metric is a number with the prefix of its size.
func metric(x float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if x >= unit.of {
			return fmt.Sprintf("%.4g %s", x/unit.of, unit.name)
		}
	}
	return fmt.Sprintf("%.4g ", x)
}
