// SPDX-License-Identifier: Apache-2.0

package engine

// Over makes engines over a given library.
var Over = over
