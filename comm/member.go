// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"fmt"
	"slices"
	"strings"
)

// A rank has two numbers: that in the job, which launchers, logs and errors use, and that in its group. In a group of
// all ranks they are the same. A list of members holds the job ranks of a group, by their numbers in it; nil means a
// group of all ranks.

// jobRank is the number in the job of rank r of a group.
func jobRank(members []int, r int) int {
	if r >= 0 && r < len(members) {
		return members[r]
	}
	return r
}

// JobRanks are the numbers in the job of some ranks of a group, whose members are given. It is for engines.
func JobRanks(members, ranks []int) []int {
	list := make([]int, len(ranks))
	for i, r := range ranks {
		list[i] = jobRank(members, r)
	}
	return list
}

// AllRanks are the members of a group of all ranks of a job, of which there are n. It is for engines.
func AllRanks(n int) []int {
	list := make([]int, n)
	for r := range list {
		list[r] = r
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
		return RankList(job)
	}
	return fmt.Sprintf("%s (%s in the group)", RankList(job), numbers(inGroup))
}

// RankList names ranks: "rank 3", "ranks 2, 3". It is for packages that start ranks.
func RankList(ranks []int) string {
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
