// SPDX-License-Identifier: Apache-2.0

package env

// horovodLauncher is horovodrun.
var horovodLauncher = launcher{
	kind: Horovod,
	sign: func(l Lookup) (string, string) { return has(l, "HOROVOD_RANK", "HOROVOD_SIZE"), "" },
	read: func(r *reader) {
		r.place("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
		r.number(fieldNodeRank, &r.e.NodeRank, "HOROVOD_CROSS_RANK")
		r.number(fieldNodes, &r.e.Nodes, "HOROVOD_CROSS_SIZE")
		r.hosts()
		// HOROVOD_GLOO_RENDEZVOUS_ADDR is the launcher's host, not rank 0's.
		r.master("pass it to all ranks (horovodrun hands its own environment on)")
	},
}
