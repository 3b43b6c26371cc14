// SPDX-License-Identifier: Apache-2.0

package env

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// What lockstep launch gives its workers beyond torchrun's variables. None of them is a
// setting of a run.
const (
	// VarLaunchID is the launch's random number; every process of the launch inherits it.
	VarLaunchID = "LOCKSTEP_LAUNCH_ID"
	// VarListenerFD is, on rank 0 alone, the descriptor of a TCP socket that already
	// listens at MASTER_ADDR and MASTER_PORT: nobody can take the port in between.
	VarListenerFD = "LOCKSTEP_LAUNCH_LISTENER_FD"
	// VarTokenFD is the descriptor of a file without a name that holds the secret of
	// VarJobToken: unlike a variable, nothing that a rank starts inherits it.
	VarTokenFD = "LOCKSTEP_LAUNCH_TOKEN_FD"
	// VarJobToken is the secret that the job's ranks prove to each other.
	VarJobToken = "LOCKSTEP_JOB_TOKEN"
	// VarJobTokenFile names a file with the secret, for ranks on several hosts.
	VarJobTokenFile = "LOCKSTEP_JOB_TOKEN_FILE"
)

var lockstepLauncher = launcher{
	kind:  Lockstep,
	sign:  func(l Lookup) (string, string) { return has(l, VarLaunchID), "" },
	read:  readLockstep,
	inner: func(Lookup) bool { return true },
}

func readLockstep(r *reader) {
	r.place(VarRank, VarWorldSize, VarLocalRank, VarLocalWorldSize)
	r.need(fieldNodeRank, &r.e.NodeRank, VarNodeRank)
	r.need(fieldNodes, &r.e.Nodes, VarNodes)
	r.address(VarMasterAddr)
	r.need(fieldMasterPort, &r.e.MasterPort, VarMasterPort)
	r.text(fieldJobID, &r.e.JobID, VarRunID)
	r.restarts()
}

// ErrNoToken is JobToken's error in an environment without a token.
var ErrNoToken = errors.New("no job token: set " + VarJobToken + ", or " + VarJobTokenFile +
	" to a file that only its owner can read")

// JobToken is the secret that the ranks of the job prove to each other: LOCKSTEP_JOB_TOKEN,
// else what the launcher has handed over, else the text of the file that
// LOCKSTEP_JOB_TOKEN_FILE names. The error is ErrNoToken, or says that the descriptor is not
// open, or that the file cannot be read, is empty or can be read by others.
func (e *Environment) JobToken() (string, error) { return Token(e.lookup) }

// Token is JobToken for a process whose place is not known, such as a launcher. It is for package launch.
func Token(lookup Lookup) (string, error) {
	if t := lookup.Get(VarJobToken); t != "" {
		return t, nil
	}
	path := lookup.Get(VarJobTokenFile)
	if t, err := handed(lookup); err == nil && t != "" || err != nil && path == "" {
		return t, err
	}
	if path == "" {
		return "", ErrNoToken
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", VarJobTokenFile, err)
	}
	if Exposed(info.Mode()) {
		return "", fmt.Errorf("%s: %s has mode %v, so that others can read the secret: want 0600", VarJobTokenFile,
			path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", VarJobTokenFile, err)
	}
	t := strings.TrimSpace(string(text))
	if t == "" {
		return "", fmt.Errorf("%s: %s is empty: want a random string", VarJobTokenFile, path)
	}
	return t, nil
}

// tokens are those that launchers have handed over, by launch and descriptor: each descriptor is
// read once, and closed, so that no child of this process inherits it.
var tokens struct {
	mu sync.Mutex
	of map[string]string
}

// descriptor is the number that a variable has, 0 if it is not set.
func descriptor(lookup Lookup, name string) (int, error) {
	text := lookup.Get(name)
	if text == "" {
		return 0, nil
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return 0, fmt.Errorf("%s is %q: want a descriptor from 3", name, text)
	}
	return fd, nil
}

// handed is the token that the launcher has handed over, "" if it has not.
func handed(lookup Lookup) (string, error) {
	fd, err := descriptor(lookup, VarTokenFD)
	if fd == 0 || err != nil {
		return "", err
	}
	tokens.mu.Lock()
	defer tokens.mu.Unlock()
	name := fmt.Sprintf("%s/%d", lookup.Get(VarLaunchID), fd)
	if t := tokens.of[name]; t != "" {
		return t, nil
	}
	token, err := takeFile(fd)
	if err != nil {
		return "",
			fmt.Errorf("%s is %d, which does not hold the job token (%w): a program between the launcher and this "+
				"one may have closed it; "+
				"give the launcher a token in a file, by %s", VarTokenFD, fd, err, VarJobTokenFile)
	}
	if tokens.of == nil {
		tokens.of = map[string]string{}
	}
	tokens.of[name] = token
	return token, nil
}

// Exposed reports whether others than the owner can read a file. Windows has no such bits.
func Exposed(m fs.FileMode) bool { return runtime.GOOS != "windows" && m.Perm()&0o077 != 0 }

// MasterListener is the socket that the launcher has opened for rank 0 at MasterAddr and
// MasterPort. It is nil, without an error, on other ranks and under launchers that open
// none: rank 0 then listens there itself. It can be taken once.
func (e *Environment) MasterListener() (net.Listener, error) {
	fd, err := descriptor(e.lookup, VarListenerFD)
	if fd == 0 || err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "master listener")
	if f == nil {
		return nil, fmt.Errorf("%s is %d, which is not open", VarListenerFD, fd)
	}
	defer f.Close() // FileListener works on a duplicate
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("%s is %d: %w", VarListenerFD, fd, err)
	}
	return l, nil
}
