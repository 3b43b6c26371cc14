// SPDX-License-Identifier: Apache-2.0

// Package schedule has the schedules of pipeline parallelism as data. A pipeline cuts a model into stages, gives each
// rank one or more of them, and sends the micro-batches of a step through. A [Schedule] lists, for each rank, the
// [Action] that it runs first, second, and so on: forward passes, backward passes, sends and receives. Use the package
// to make a schedule, to check it, to predict its time and memory, and to draw it; nothing is computed here.
//
//	s, err := schedule.New("zbv", schedule.Shape{Ranks: 4, MicroBatches: 16})
//	err = s.Validate()                                     // every fault, before the first step
//	sim, err := s.Simulate(schedule.Uniform(s.Stages(), schedule.StageCosts{Forward: 1, Input: 1, Weight: 1}, 0))
//	fmt.Print(sim.Text(120))                               // idle time, peak memory, a drawing
//	s, err = s.Lower()                                     // with sends and receives, as a rank runs it
//
// [New] generates a schedule by its name (see [Names]) and [ReadCSV] reads one from a table in PyTorch's format.
// [Schedule.Truncate] is the schedule of a step with fewer micro-batches, [Schedule.Forward] that of an evaluation.
//
// # Bits
//
// A stage adds the weight gradients of its micro-batches in the order of its W and B actions. In every schedule of this
// package that order ascends, as in a process that runs the micro-batches one after the other, so every schedule gives
// that process's bits. [Schedule.Validate] refuses a schedule in which it does not.
//
// # Sources
//
// GPipe: Huang et al., 2019 (arXiv:1811.06965). 1F1B: PipeDream-Flush in Narayanan et al., 2021 (arXiv:2006.09503).
// Interleaved 1F1B: Narayanan et al., 2021 (arXiv:2104.04473). Looped BFS: Lamy-Poirier, 2023 (arXiv:2211.05953).
// ZB-H1 and ZBV: Qi et al., 2024 (arXiv:2401.10241). DualPipeV: DeepSeek-AI, 2025, after DualPipe (arXiv:2412.19437).
package schedule
