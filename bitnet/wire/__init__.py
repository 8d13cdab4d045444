"""The dialects of other programs: functions from bodies to requests and from answers to replies."""
