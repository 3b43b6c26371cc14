// Package tensorboard writes a run's records as event files that TensorBoard shows. A blank import makes it available to report_to as tensorboard.
//
// The files are TFRecords of tensorflow.Event messages, encoded here by hand with protowire: the format has been frozen for years, and a generated
// copy of TensorFlow's schema would be the larger part of the binary. Only what is written is known; the package reads nothing back, and has no
// histograms, images or graphs.
package tensorboard
