package access

import (
	"fmt"
	"net"
	"os"
	"strconv"
)

// Inherited returns the listeners that systemd opened for this process (socket
// activation, sd_listen_fds), none where it did not.
func Inherited() ([]net.Listener, error) {
	const first = 3 // file descriptor
	if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
		return nil, nil
	}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || n < 0 {
		return nil, fmt.Errorf("LISTEN_FDS is %q", os.Getenv("LISTEN_FDS"))
	}
	var listeners []net.Listener
	for i := range n {
		file := os.NewFile(uintptr(first+i), "LISTEN_FD_"+strconv.Itoa(first+i))
		l, err := net.FileListener(file)
		file.Close() // the listener has its own
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, fmt.Errorf("socket %d of systemd: %w", i, err)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// Notify tells systemd about the state of this process, such as READY=1 (sd_notify).
// Without systemd it does nothing.
func Notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}
