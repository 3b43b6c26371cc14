// SPDX-License-Identifier: Apache-2.0

package env

import (
	"fmt"
	"strings"
)

const varCompletionIndex = "JOB_COMPLETION_INDEX"

// indexedJobLauncher is a Kubernetes Job with completionMode Indexed, or a JobSet of them.
// Such a Job tells a pod its index, but neither how many pods there are nor whether they
// belong together, so WORLD_SIZE makes the difference.
var indexedJobLauncher = launcher{
	kind: IndexedJob,
	sign: func(l Lookup) (string, string) {
		if has(l, varCompletionIndex) == "" || has(l, VarRank, VarLaunchID, "PET_NODE_RANK", "PET_NNODES") != "" {
			return "", ""
		}
		if has(l, VarWorldSize, VarMasterAddr) == "" {
			return "",
				fmt.Sprintf("%s is set, but %s is not: this pod runs alone. To train together, set %s to the Job's "+
					"completions and %s to <job>-0.<service>",
					varCompletionIndex, VarWorldSize, VarWorldSize, VarMasterAddr)
		}
		if l.Get(VarWorldSize) == "1" {
			return "", fmt.Sprintf("%s is set, and %s is 1: this pod runs alone", varCompletionIndex, VarWorldSize)
		}
		return varCompletionIndex, ""
	},
	read: func(r *reader) {
		r.need(fieldRank, &r.e.Rank, varCompletionIndex)
		r.need(fieldWorldSize, &r.e.WorldSize, VarWorldSize)
		r.podPerRank()
		r.master("set it to the pod of index 0 in the headless service, " + podZero(r.lookup))
	},
}

// podZero is the name of the Job's first pod, as far as this pod's name gives it away.
func podZero(l Lookup) string {
	job, ok := strings.CutSuffix(l.Get("HOSTNAME"), "-"+l.Get(varCompletionIndex))
	if !ok {
		job = "<job>"
	}
	return job + "-0.<service>"
}
