// SPDX-License-Identifier: Apache-2.0

// Package trackio reports runs to a trackio server, as "trackio show" starts one. Import it for its side effect, and
// set the argument report_to to trackio. [Config] lists the variables that it reads.
//
// A row has the names of HuggingFace's reporter, and train/global_step beside it. The package sends numbers and texts,
// the arguments, the model's configuration and the number of its parameters. It makes no Space or bucket of the Hub,
// and writes no local database: the server does.
package trackio
