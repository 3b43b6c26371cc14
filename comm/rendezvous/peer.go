// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"net"
	"os"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/comm/internal/wire"
	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// Peer describes a process of a job to the others.
type Peer struct {
	Rank    int    `json:"rank"`
	Host    string `json:"host"`    // name, for people
	HostID  string `json:"host_id"` // equal for processes that can share memory
	PID     int    `json:"pid"`
	Address string `json:"address"` // where it listens
	Kernels string `json:"kernels"` // variant of the CPU kernels: ranks that differ would not compute the same bits

	Engine string `json:"engine,omitempty"` // Config.Engine

	Restarted bool `json:"restarted,omitempty"` // its launcher has started it again after a failure
}

func self(c Config, address string) Peer {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return Peer{Rank: c.Rank, Host: host, HostID: cmp.Or(c.HostID, hostID(host)), PID: os.Getpid(), Address: address,
		Kernels: kernels.Active().String(), Engine: c.Engine, Restarted: c.Restarted}
}

// hostID tells apart what cannot share memory: hosts by their boot, and containers by their process namespace, through
// which segments are opened.
func hostID(name string) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return name
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		namespace = "pid:unknown"
	}
	return strings.TrimSpace(string(boot)) + "/" + namespace
}

// listenFor makes a connection end when nothing has come from the other host for so long: it is gone, or the link to it
// is cut. A stopped process is still answered for by its kernel.
func listenFor(c net.Conn, silence time.Duration) {
	tcp := wire.TCP(c)
	if tcp == nil {
		return
	}
	pause := max(silence/4, time.Second) // the unit of some systems
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: pause, Interval: pause, Count: 3})
	limitUnacknowledged(tcp, silence)
}
