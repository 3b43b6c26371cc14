package callbacks

import "time"

// SetClock lets a test tell the time.
func SetClock(s *Speed, now func() time.Time) { s.meter.now = now }
