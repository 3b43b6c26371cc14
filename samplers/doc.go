// Package samplers decides which samples of a dataset are seen, in which order, and by which rank.
//
// # Terms
//
// A Sampler orders the samples of an epoch: n = Len() of them, sample i of epoch e being dataset index At(e, i). Cut into micro-batches of b
// consecutive samples an epoch has L = ⌈n/b⌉ of them, the last with what remains; with drop-last L = ⌊n/b⌋, and all are whole. The samples
// used per epoch are S = n, or L·b with drop-last.
//
// The training stream is epoch 0, epoch 1, … without end. The position of sample i of epoch e in it is e·S + i. Positions are what
// checkpoints store and what random numbers (dropout) depend on; neither knows of ranks.
//
// An optimizer step consumes a window: M = accumulation steps × world size consecutive micro-batches of one epoch, numbered 0 … M−1 as the window's
// leaves. Rank r owns leaves [r·M/N, (r+1)·M/N) with N the world size, so that the same M on another number of ranks gives the same leaves to the
// same window. Windows do not cross epochs: an epoch has max(⌈L/M⌉, 1) steps, and its last window may have fewer leaves, of which rank r owns those
// of its range that exist: possibly none. Nothing is repeated to fill up.
//
// # What it is not
//
// The package moves indices, not data: it reads no dataset, starts no goroutine and holds no memory that grows with n. Everything is a
// function of (seed, position), so seeking costs O(1).
package samplers
