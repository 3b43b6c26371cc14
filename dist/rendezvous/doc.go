// Package rendezvous brings the processes of one job together: a store that one of them (or the launcher) serves, the addresses of all, and one control connection between
// each two, whose end is a death notice.
//
// Every connection begins with a handshake by which both sides prove that they know the job's token, so two jobs never meet, whatever ports they use, and a stranger
// learns and disturbs nothing. Listeners are bound to the loopback interface unless a configuration names another. Frames are bounded, messages are JSON.
//
// Where no launcher tells all processes the store's address and the token, rank 0 announces them in a [Meeting]: a file that only its user can read, or the store that
// torchrun serves to its workers.
//
// It is NOT a launcher, starts no process and restarts none, and moves no tensors.
package rendezvous
