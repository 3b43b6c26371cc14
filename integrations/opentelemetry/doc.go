// SPDX-License-Identifier: Apache-2.0

// Package opentelemetry exports the figures of a run to an OpenTelemetry collector, as OTLP over HTTP in JSON. Import
// it for its side effect, and set the argument report_to to opentelemetry. [FromEnvironment] lists the variables of
// OpenTelemetry's specification that it reads.
//
// Each number of a record is a point of a gauge with the record's key, at the record's time: lockstep.loss,
// lockstep.eval_loss, lockstep.memory_rss in bytes. lockstep.step is the optimizer steps done. Points have the
// attributes run and run_id. There are no traces and no logs: a profile shows where the time of a step goes.
package opentelemetry
