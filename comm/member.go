// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"fmt"
	"slices"
	"strings"
)

// A rank has two numbers: that in the job, which launchers, logs and errors use, and that in its group. In a group of
// all ranks they are the same. A list of members holds the job ranks of a group, by their numbers in it; nil stands for
// a group of all ranks.

// jobRank is the number in the job of rank r of a group.
func jobRank(members []int, r int) int {
	if r >= 0 && r < len(members) {
		return members[r]
	}
	return r
}

// jobRanks are the numbers in the job of some ranks of a group.
func jobRanks(members, ranks []int) []int {
	list := make([]int, len(ranks))
	for i, r := range ranks {
		list[i] = jobRank(members, r)
	}
	return list
}

// rankText names a rank: "rank 3 (1 in the group)".
func rankText(job, inGroup int) string {
	if job == inGroup {
		return fmt.Sprintf("rank %d", job)
	}
	return fmt.Sprintf("rank %d (%d in the group)", job, inGroup)
}

// ranksText names ranks: "ranks 2, 3 (0, 1 in the group)".
func ranksText(job, inGroup []int) string {
	if slices.Equal(job, inGroup) {
		return rankList(job)
	}
	return fmt.Sprintf("%s (%s in the group)", rankList(job), numbers(inGroup))
}

func rankList(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "no rank"
	case 1:
		return "rank " + numbers(ranks)
	}
	return "ranks " + numbers(ranks)
}

func numbers(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
}
