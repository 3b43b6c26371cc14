// SPDX-License-Identifier: Apache-2.0

package wandb

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// The modes of a run.
const (
	Online   = "online"   // written to a folder and sent to the server
	Offline  = "offline"  // written to a folder, which "wandb sync" uploads
	Disabled = "disabled" // nothing
)

// DefaultBaseURL is the server of the public cloud.
const DefaultBaseURL = "https://api.wandb.ai"

// Config says where runs go. The zero value of a field is its default.
type Config struct {
	Dir     string // in which the folder wandb is made, by default the present one; WANDB_DIR
	Mode    string // by default Online with an APIKey, else Offline; WANDB_MODE
	BaseURL string // of the server; WANDB_BASE_URL
	// APIKey is WANDB_API_KEY, or the password of the server in the netrc file (NETRC, ~/.netrc or ~/_netrc)
	APIKey  string
	Project string // WANDB_PROJECT, or the argument project; by default huggingface
	Entity  string // the user or team; WANDB_ENTITY
	Name    string // of the run, instead of run_name; WANDB_NAME
	// RunID is that of a run to continue, by default the one of the checkpoint that is resumed; WANDB_RUN_ID
	RunID   string
	Group   string   // WANDB_RUN_GROUP
	JobType string   // WANDB_JOB_TYPE
	Notes   string   // WANDB_NOTES
	Tags    []string // WANDB_TAGS, with commas between them
}

func init() {
	callbacks.RegisterReporter("wandb", func(a *args.TrainingArguments) (callbacks.Callback, error) {
		c, err := FromEnvironment(a.OutputDir)
		c.Project = cmp.Or(c.Project, a.Project)
		if err != nil {
			return nil, err
		}
		return New(c)
	})
}

// FromEnvironment returns the configuration that wandb's variables make. Without WANDB_DIR, runs are in dir.
func FromEnvironment(dir string) (Config, error) {
	for _, name := range []string{"WANDB_WATCH", "WANDB_LOG_MODEL"} {
		if v := os.Getenv(name); v != "" && !strings.EqualFold(v, "false") {
			return Config{}, fmt.Errorf("%s is %q: want false: gradients and models are not uploaded", name, v)
		}
	}
	c := Config{Dir: cmp.Or(os.Getenv("WANDB_DIR"), dir), Mode: os.Getenv("WANDB_MODE"),
		BaseURL: cmp.Or(os.Getenv("WANDB_BASE_URL"), DefaultBaseURL),
		APIKey:  strings.TrimSpace(os.Getenv("WANDB_API_KEY")),
		Project: os.Getenv("WANDB_PROJECT"), Entity: os.Getenv("WANDB_ENTITY"), Name: os.Getenv("WANDB_NAME"),
		RunID: os.Getenv("WANDB_RUN_ID"), Group: os.Getenv("WANDB_RUN_GROUP"), JobType: os.Getenv("WANDB_JOB_TYPE"),
		Notes: os.Getenv("WANDB_NOTES")}
	for tag := range strings.SplitSeq(os.Getenv("WANDB_TAGS"), ",") {
		if tag = strings.TrimSpace(tag); tag != "" {
			c.Tags = append(c.Tags, tag)
		}
	}
	if c.APIKey == "" {
		c.APIKey = netrcPassword(c.BaseURL)
	}
	return c, nil
}

// New returns the reporter of a configuration. It opens nothing yet.
func New(c Config) (callbacks.Callback, error) {
	if c.Mode != "" && !slices.Contains([]string{Online, Offline, Disabled}, c.Mode) {
		return nil, fmt.Errorf("mode is %q (WANDB_MODE): want online, offline or disabled", c.Mode)
	}
	c.BaseURL, c.Project = cmp.Or(c.BaseURL, DefaultBaseURL), cmp.Or(c.Project, "huggingface")
	if c.Mode == Online && c.APIKey == "" {
		return nil, errors.New("there is no API key for mode online (WANDB_API_KEY, or wandb login): want one, " +
			"or mode offline")
	}
	if _, err := newStream(c, nil); err != nil {
		return nil, err
	}
	if strings.ContainsAny(c.Project, `/\#?%:`) {
		return nil, fmt.Errorf(`project is %q (WANDB_PROJECT): want a name without any of :%%?#\/`, c.Project)
	}
	if c.RunID != "" && !tracker.ValidID(c.RunID) {
		return nil, fmt.Errorf("the run's ID is %q (WANDB_RUN_ID): want up to 64 letters, digits, hyphens and "+
			"underscores", c.RunID)
	}
	return tracker.New(tracker.Options{Name: "wandb", Callback: "WandbCallback", RunID: c.RunID, RunName: c.Name,
		Project: c.Project, Open: c.open}), nil
}

// online reports whether the server gets the run.
func (c Config) online() bool { return c.Mode == Online || c.Mode == "" && c.APIKey != "" }

// open returns the run's folder and, online, its stream. The folder has the rows also where the server does not answer.
func (c Config) open(run tracker.Run) []tracker.Destination {
	if c.Mode == Disabled {
		return nil
	}
	f := newFolder(c, run.ID)
	if s, err := newStream(c, f); err == nil && c.online() {
		return []tracker.Destination{f, s}
	}
	return []tracker.Destination{f}
}

// netrcPassword returns the password of a server's machine in the user's netrc file, where "wandb login" puts the key,
// or "" if there is none.
func netrcPassword(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	home, _ := os.UserHomeDir()
	for _, path := range []string{os.Getenv("NETRC"), filepath.Join(home, ".netrc"), filepath.Join(home, "_netrc")} {
		if path == "" {
			continue
		}
		if text, err := vfs.ReadFile(vfs.OS, path, 1<<20); err == nil {
			return netrcEntry(strings.Fields(string(text)), u.Host)
		}
	}
	return ""
}

// netrcEntry finds the password of a machine among a file's words.
func netrcEntry(words []string, host string) string {
	here := false
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "machine":
			i++
			here = words[i] == host
		case "password":
			i++
			if here {
				return strings.Trim(words[i], `'"`)
			}
		}
	}
	return ""
}
