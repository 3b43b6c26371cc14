// SPDX-License-Identifier: Apache-2.0

package wandb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lockstep-ml/lockstep/integrations/internal/protobuf"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// Field numbers of wandb_internal.proto.
const (
	recordNum     = 1
	recordHistory = 2
	recordSummary = 3
	recordMetric  = 12
	recordRun     = 17
	recordExit    = 18
	recordHeader  = 21

	headerVersion   = 1
	versionProducer = 1
	versionConsumer = 2

	runID       = 1
	runEntity   = 2
	runProject  = 3
	runConfig   = 4
	runGroup    = 6
	runJobType  = 7
	runName     = 8
	runNotes    = 9
	runTags     = 10
	runHost     = 13
	runStart    = 17
	runResume   = 24
	itemUpdate  = 1 // of a configuration, and of a summary
	itemKey     = 1
	itemNested  = 2
	itemJSON    = 16
	historyItem = 1
	historyStep = 2
	stepNum     = 1

	metricName    = 1
	metricGlob    = 2
	metricStep    = 4
	metricOptions = 6
	optionSync    = 1
	optionDefined = 3

	exitCodeField = 1
	stampSeconds  = 1
	stampNanos    = 2
)

// minConsumer is the oldest version of wandb that reads such records, as wandb 0.31 declares it.
const minConsumer = "0.70.0"

// folder is a run's folder: wandb/offline-run-<date>-<ID> with run-<ID>.wandb.
type folder struct {
	config Config
	path   string
	file   *os.File
	log    logWriter
	num    uint64
	begin  time.Time
	step   int64
	ended  bool
}

// newFolder chooses a name that no folder has.
func newFolder(c Config, id string) *folder {
	prefix := map[bool]string{true: "run-", false: "offline-run-"}[c.online()]
	for at := time.Now(); ; at = at.Add(time.Second) {
		path := filepath.Join(c.Dir, "wandb", prefix+at.Format("20060102_150405")+"-"+id)
		if _, err := os.Lstat(path); err != nil {
			return &folder{config: c, path: path}
		}
	}
}

// syncCommand uploads the folder.
func (f *folder) syncCommand() string {
	if f.config.online() {
		return "wandb sync --include-online " + f.path
	}
	return "wandb sync " + f.path
}

// Begin makes the folder and writes what the run is.
func (f *folder) Begin(_ context.Context, run tracker.Run) (err error) {
	if f.file != nil {
		f.file.Close() // of a try that failed
	}
	for _, dir := range []string{"files", "logs"} {
		if err := os.MkdirAll(filepath.Join(f.path, dir), 0o777); err != nil {
			return err
		}
	}
	if f.file, err = os.Create(filepath.Join(f.path, "run-"+run.ID+".wandb")); err != nil {
		return err
	}
	f.log, f.num, f.begin = logWriter{w: f.file}, 0, run.Begin
	if err = f.log.begin(); err != nil {
		return err
	}
	version := protobuf.String(nil, versionProducer, "lockstep")
	version = protobuf.String(version, versionConsumer, minConsumer)
	records := []record{{recordHeader, protobuf.Bytes(nil, headerVersion, version)}, {recordRun, f.runRecord(run)}}
	axis := protobuf.String(nil, metricName, stepMetric)
	axis = protobuf.Bytes(axis, metricOptions, protobuf.Varint(nil, optionDefined, 1))
	all := protobuf.String(nil, metricGlob, "*")
	all = protobuf.String(all, metricStep, stepMetric)
	all = protobuf.Bytes(all, metricOptions, protobuf.Varint(protobuf.Varint(nil, optionSync, 1), optionDefined, 1))
	return f.write(append(records, record{recordMetric, axis}, record{recordMetric, all})...)
}

func (f *folder) runRecord(run tracker.Run) []byte {
	c := f.config
	b := protobuf.String(nil, runID, run.ID)
	for field, text := range map[protowire.Number]string{runEntity: c.Entity, runProject: run.Project,
		runGroup: c.Group, runJobType: c.JobType, runName: run.Name, runNotes: c.Notes, runHost: hostName()} {
		if text != "" {
			b = protobuf.String(b, field, text)
		}
	}
	for _, tag := range c.Tags {
		b = protobuf.String(b, runTags, tag)
	}
	var settings []byte
	for _, key := range slices.Sorted(maps.Keys(run.Config)) {
		settings = protobuf.Bytes(settings, itemUpdate, item(itemKey, pair{key, jsonText(run.Config[key])}))
	}
	b = protobuf.Bytes(b, runConfig, settings)
	stamp := protobuf.Varint(nil, stampSeconds, uint64(run.Begin.Unix()))
	b = protobuf.Bytes(b, runStart, protobuf.Varint(stamp, stampNanos, uint64(run.Begin.Nanosecond())))
	return protobuf.Varint(b, runResume, protowire.EncodeBool(run.Resumed))
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// item encodes an entry of a configuration, a summary or a row. A nested key does not split names at dots.
func item(key protowire.Number, p pair) []byte {
	return protobuf.String(protobuf.String(nil, key, p.name), itemJSON, p.value)
}

// Log writes rows, each with the values that are last now.
func (f *folder) Log(_ context.Context, rows []tracker.Row) error {
	var records []record
	for i, r := range rows {
		history, summary := columns(r, f.step+int64(i), f.begin)
		var line, last []byte
		for _, p := range history {
			line = protobuf.Bytes(line, historyItem, item(itemNested, p))
		}
		for _, p := range append(history, summary...) {
			last = protobuf.Bytes(last, itemUpdate, item(itemNested, p))
		}
		line = protobuf.Bytes(line, historyStep, protobuf.Varint(nil, stepNum, uint64(f.step)+uint64(i)))
		records = append(records, record{recordSummary, last}, record{recordHistory, line})
	}
	if err := f.write(records...); err != nil {
		return err
	}
	f.step += int64(len(rows))
	return nil
}

// End writes how the run ended.
func (f *folder) End(_ context.Context, _ time.Time, s tracker.Status) error {
	f.ended = true
	return f.write(record{recordExit, protobuf.Varint(nil, exitCodeField, uint64(exitCode(s)))})
}

// Close closes the file, and tells how an offline run is uploaded.
func (f *folder) Close() error {
	if f.file == nil {
		return nil
	}
	if f.ended && !f.config.online() {
		level := slog.LevelInfo
		if f.config.Mode == "" {
			level = slog.LevelWarn // the user may not know
		}
		slog.Log(context.Background(), level, "the run is offline", "reporter", "wandb", "upload", f.syncCommand())
	}
	return f.file.Close()
}

// record is a message by its field of Record.
type record struct {
	field   protowire.Number
	message []byte
}

// write appends records, all or none of them.
func (f *folder) write(records ...record) error {
	was := *f
	start, err := f.file.Seek(0, 1)
	for _, r := range records {
		if err == nil {
			f.num++
			err = f.log.write(protobuf.Bytes(protobuf.Varint(nil, recordNum, f.num), r.field, r.message))
		}
	}
	if err != nil {
		f.num, f.log = was.num, was.log
		_, back := f.file.Seek(start, 0)
		return fmt.Errorf("writing %s: %w", f.file.Name(), errors.Join(err, f.file.Truncate(start), back))
	}
	return nil
}
