// SPDX-License-Identifier: Apache-2.0

package env

import "strconv"

// readNone is a process that nobody placed: the only rank of its job. Variables that only a
// launcher sets are refused, since the launcher's others must have got lost.
func readNone(r *reader) {
	const rule = "no launcher"
	r.set(fieldRank, &r.e.Rank, 0, rule)
	r.set(fieldWorldSize, &r.e.WorldSize, 1, rule)
	r.alone(rule)
	r.hosts()
	if n := r.lookup.Get(VarWorldSize); n != "" && n != "1" {
		r.fault("%s is %s, but no %s is set: set both, or neither", VarWorldSize, n, VarRank)
	}
	if n := r.lookup.Get(VarLocalRank); n != "" && n != "0" {
		r.fault("%s is %s, but no %s is set: set %s, %s, %s, %s and %s, or none of them",
			VarLocalRank, strconv.Quote(n), VarRank, VarRank, VarWorldSize, VarLocalRank, VarMasterAddr, VarMasterPort)
	}
}
