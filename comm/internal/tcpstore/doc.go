// SPDX-License-Identifier: Apache-2.0

// Package tcpstore is a client of PyTorch's TCPStore, the map from keys to values that torchrun serves to the processes
// it starts. It speaks the protocol of PyTorch 2.2 and newer, which both of PyTorch's servers (libuv's and the older
// one) understand; testdata holds exchanges that were recorded between them and PyTorch's own client.
//
// A TCPStore neither authenticates nor encrypts. The client therefore trusts no reply: lengths are bounded before
// anything is allocated, and every wait ends with its context.
//
// It is NOT a server, and it has only the operations by which ranks meet.
package tcpstore
