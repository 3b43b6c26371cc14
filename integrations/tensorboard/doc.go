// SPDX-License-Identifier: Apache-2.0

// Package tensorboard writes the records of a run as event files that TensorBoard shows. Import the package for its
// side effect, and set the argument report_to to tensorboard. Use [NewWriter] in your own training loop. A callback of
// a run adds histograms and images to those of a [Reporter]: [Reporter.AddHistogram], [Reporter.AddImage].
//
// The files are TFRecords of tensorflow.Event messages, encoded here by hand with protowire: the format has
// been frozen for years, and a generated copy of TensorFlow's schema would be the larger part of the binary.
// The package knows scalars, texts, histograms, images and hyper-parameters; it has no graphs, and it reads
// nothing back.
package tensorboard
