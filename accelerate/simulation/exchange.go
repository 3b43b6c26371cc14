// SPDX-License-Identifier: Apache-2.0

package simulation

import "github.com/lockstep-ml/lockstep/comm"

// exchange is what a rank sends in a collective, and how long that takes it.
type exchange struct {
	seconds float64
	bytes   float64 // to all ranks, of them
	across  float64 // to other hosts
}

func (e exchange) then(o exchange) exchange {
	return exchange{e.seconds + o.seconds, e.bytes + o.bytes, e.across + o.across}
}

// slices sends each other rank along axes a slice of a buffer, as the engines do that add in the tree's order. Messages
// to one host move beside those to others.
func (j *Job) slices(rank int, axes comm.Axes, bytes float64) (e exchange) {
	peers := j.Mesh.Peers(rank, axes)
	each, within, latency := bytes/float64(len(peers)), 0.0, 0.0
	for _, p := range peers {
		if p == rank {
			continue
		}
		if e.bytes += each; j.Hardware.host(p) == j.Hardware.host(rank) {
			within += each
		} else {
			e.across += each
		}
		latency = max(latency, j.Hardware.link(rank, p).Latency)
	}
	e.seconds = latency + max(within/j.Hardware.Within.Bandwidth, e.across/j.Hardware.Across.Bandwidth)
	return e
}

// reduce sums gradients: the ranks that spread the model give each its part, of which the others with that part get the
// sum.
func (j *Job) reduce(rank int, bytes int64) exchange {
	n := float64(bytes)
	if !j.Sharding.Optimizer {
		scattered := j.slices(rank, shared, n)
		return scattered.then(scattered)
	}
	axes := j.shards()
	e, part := j.slices(rank, axes, n), j.slices(rank, comm.DPReplicate, n/float64(j.Mesh.Size(axes)))
	return e.then(part).then(part)
}

// shards are the axes of the ranks that spread the model.
func (j *Job) shards() comm.Axes { return comm.DPShard | comm.CP }

// Exchange returns the time that ranks of a mesh take for calls that send so many bytes to the others along axes: that
// of the rank with the most peers on other hosts.
func (h Hardware) Exchange(m comm.Mesh) func(axes comm.Axes, calls int, bytes int64) float64 {
	most := map[comm.Axes]float64{}
	return func(axes comm.Axes, calls int, bytes int64) float64 {
		abroad, ok := most[axes]
		if !ok {
			for rank := range m.Size(^comm.Axes(0)) {
				abroad = max(abroad, h.abroad(m, rank, axes))
			}
			most[axes] = abroad
		}
		latency := h.Within.Latency
		if abroad > 0 {
			latency = h.Across.Latency
		}
		n := float64(bytes)
		return float64(calls)*latency + max(n*(1-abroad)/h.Within.Bandwidth, n*abroad/h.Across.Bandwidth)
	}
}

// abroad is the part of a rank's peers along axes, 0 to 1, that are on other hosts.
func (h Hardware) abroad(m comm.Mesh, rank int, axes comm.Axes) float64 {
	peers := m.Peers(rank, axes)
	far := 0
	for _, p := range peers {
		if h.host(p) != h.host(rank) {
			far++
		}
	}
	return float64(far) / float64(max(len(peers)-1, 1))
}

// gather makes the parameters of a stage whole for its passes.
func (j *Job) gather(rank int, bytes int64) exchange {
	if !j.Sharding.Parameters {
		return exchange{}
	}
	return j.allGather(rank, bytes)
}

// allGather gives the ranks that spread the model all of it.
func (j *Job) allGather(rank int, bytes int64) exchange {
	return j.slices(rank, j.shards(), float64(bytes))
}

// slowest is the time of an exchange of the ranks that have the stages of a rank of a pipeline.
func (j *Job) slowest(inPipeline int, of func(rank int) exchange) (seconds float64) {
	for column := range j.Mesh.Size(columns) {
		seconds = max(seconds, of(j.rank(inPipeline, column)).seconds)
	}
	return seconds
}
