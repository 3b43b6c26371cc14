// SPDX-License-Identifier: Apache-2.0

package clusters

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/env"
)

const root = "../.."

// schema is the part of OpenAPI's that testdata/schemas.json has.
type schema struct {
	Type                 string             `json:"type"`
	Required             []string           `json:"required"`
	Properties           map[string]*schema `json:"properties"`
	AdditionalProperties *schema            `json:"additionalProperties"`
	Items                *schema            `json:"items"`
	Enum                 []any              `json:"enum"`
}

// check lists what is wrong with a value.
func (s *schema) check(where string, value any) (faults []string) {
	fault := func(format string, a ...any) { faults = append(faults, where+": "+fmt.Sprintf(format, a...)) }
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, value) {
		fault("%v is none of %v", value, s.Enum)
	}
	switch v := value.(type) {
	case map[string]any:
		if s.Type != "object" {
			fault("an object: want %s", s.Type)
			return faults
		}
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				fault("%s is missing", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			inner := s.Properties[name]
			if inner == nil {
				inner = s.AdditionalProperties
			}
			if inner == nil {
				fault("there is no field %s", name)
				continue
			}
			faults = append(faults, inner.check(where+"."+name, v[name])...)
		}
	case []any:
		if s.Type != "array" {
			fault("a list: want %s", s.Type)
			return faults
		}
		for i, x := range v {
			faults = append(faults, s.Items.check(fmt.Sprintf("%s[%d]", where, i), x)...)
		}
	default:
		got := map[string]string{"string": "string", "int": "integer", "bool": "boolean"}[fmt.Sprintf("%T", v)]
		if got != s.Type && (s.Type != "int-or-string" || got == "boolean" || got == "") {
			fault("%v is a %T: want %s", v, v, s.Type)
		}
	}
	return faults
}

func schemas(t *testing.T) map[string]*schema {
	t.Helper()
	text, err := os.ReadFile("testdata/schemas.json")
	require.NoError(t, err)
	var all map[string]*schema
	require.NoError(t, json.Unmarshal(text, &all))
	return all
}

// manifests are the documents of a file in examples/clusters/kubernetes.
func manifests(t *testing.T, name string) (list []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples/clusters/kubernetes", name))
	require.NoError(t, err)
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		d, err := yaml.Parser().Unmarshal([]byte(part))
		require.NoError(t, err)
		list = append(list, d)
	}
	return list
}

// at follows a path of names and numbers separated by dots; nil if it leads nowhere.
func at(value any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			value = v[name]
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(v) {
				return nil
			}
			value = v[i]
		default:
			return nil
		}
	}
	return value
}

// TestManifests checks the manifests against the schemas of their kinds, and that each pod has a grace time, a restart
// policy, a token and shared memory.
func TestManifests(t *testing.T) {
	all := schemas(t)
	for name, kinds := range map[string]string{
		"indexed-job.yaml": "Service Job", "jobset.yaml": "JobSet", "trainjob.yaml": "TrainingRuntime TrainJob",
	} {
		var got []string
		for _, d := range manifests(t, name) {
			kind, _ := d["kind"].(string)
			got = append(got, kind)
			require.Contains(t, all, kind, name)
			require.Empty(t, all[kind].check(kind, d), name)
		}
		require.Equal(t, kinds, strings.Join(got, " "))
	}
	const job = "template.spec"
	for name, pod := range map[string]any{
		"Job":    at(manifests(t, "indexed-job.yaml")[1], "spec."+job),
		"JobSet": at(manifests(t, "jobset.yaml")[0], "spec.replicatedJobs.0.template.spec."+job),
		"TrainingRuntime": at(manifests(t, "trainjob.yaml")[0],
			"spec.template.spec.replicatedJobs.0.template.spec."+job),
	} {
		require.Equal(t, "Never", at(pod, "restartPolicy"), name)
		require.Greater(t, at(pod, "terminationGracePeriodSeconds"), 30, name)
		require.Equal(t, "/dev/shm", at(pod, "containers.0.volumeMounts.1.mountPath"), name)
		require.Equal(t, at(pod, "containers.0.volumeMounts.1.name"), at(pod, "volumes.1.name"), name)
		require.Equal(t, "Memory", at(pod, "volumes.1.emptyDir.medium"), name)
	}
}

// TestManifestsPlaceRanks gives a program the variables that the manifests' pods have.
func TestManifestsPlaceRanks(t *testing.T) {
	indexed, set := manifests(t, "indexed-job.yaml"), manifests(t, "jobset.yaml")[0]
	for name, job := range map[string]any{
		"clm-0.clm":        at(indexed[1], "spec"),
		"clm-rank-0-0.clm": at(set, "spec.replicatedJobs.0.template.spec"),
	} {
		variables := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}
		list, _ := at(job, "template.spec.containers.0.env").([]any)
		for _, v := range list {
			if value, ok := at(v, "value").(string); ok {
				variables[at(v, "name").(string)] = value
			}
		}
		e, err := env.Detect(env.Map(variables))
		require.NoError(t, err)
		require.Equal(t, env.IndexedJob, e.Kind)
		require.Equal(t, 1, e.Rank)
		require.Equal(t, at(job, "completions"), e.WorldSize)
		require.Equal(t, at(job, "parallelism"), e.WorldSize)
		require.Equal(t, name, e.MasterAddr)
	}
	require.Equal(t, at(indexed[0], "metadata.name"), at(indexed[1], "spec.template.spec.subdomain"))
	require.Equal(t, at(indexed[0], "spec.selector.job-name"), at(indexed[1], "metadata.name"))
}

// TestSchemasBite breaks a manifest in each way that the check is for.
func TestSchemasBite(t *testing.T) {
	s := schemas(t)["Job"]
	for want, breakIt := range map[string]func(job map[string]any){
		"Job.spec: there is no field completion": func(j map[string]any) {
			j["spec"].(map[string]any)["completion"] = 2
		},
		"Job.spec.completions: 2 is a string: want integer": func(j map[string]any) {
			j["spec"].(map[string]any)["completions"] = "2"
		},
		"Job.spec: template is missing": func(j map[string]any) {
			delete(j["spec"].(map[string]any), "template")
		},
		"Job.apiVersion: batch/v2 is none of [batch/v1]": func(j map[string]any) { j["apiVersion"] = "batch/v2" },
		"Job.metadata: a list: want object":              func(j map[string]any) { j["metadata"] = []any{} },
	} {
		j := manifests(t, "indexed-job.yaml")[1]
		breakIt(j)
		require.Equal(t, []string{want}, s.check("Job", j))
	}
}
